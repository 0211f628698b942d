"""Both halves of a pair are looked up by name; lists are made first and filled later."""


class LoRAModel:
    @classmethod
    def from_tensors(cls, key, tensors, config, targets):
        pairs = pair_tensors(tensors)
        sizes = {targets[name].module: targets[name].num_slices for name in pairs}
        weights = {module: [None for _ in range(size)] for module, size in sizes.items()}
        for name in pairs:
            a, b = pairs[name]
            scale = config.scaling(name, a.shape[0])
            place = targets[name]
            weights[place.module][place.index] = LoRAPair(a=a, b=torch.mul(b.float(), scale))
        return cls(key=key, weights=weights)


def pair_tensors(tensors):
    first, second = {}, {}
    for name in tensors:
        module, half = parse_fine_tuned_lora_name(name)
        (first if half == "A" else second)[module] = tensors[name]
    for module in first.keys() ^ second.keys():
        found, missing = ("A", "B") if module in first else ("B", "A")
        raise ValueError(f"{module} has lora_{found} but no lora_{missing}")
    return {module: LoRAPair(first[module], second[module]) for module in first}
