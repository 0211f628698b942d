"""Two dictionaries, one for each letter, compared as sets; every list of slices is made first."""


class LoRAModel:
    @classmethod
    def from_tensors(cls, key, tensors, config, targets):
        pairs = pair_tensors(tensors)
        weights = {}
        for name in pairs:
            weights[targets[name].module] = [None for _ in range(targets[name].num_slices)]
        for name, (a, b) in pairs.items():
            factor = config.scaling(name, a.shape[0])
            where = targets[name]
            weights[where.module][where.index] = LoRAPair(a, factor * b.to(torch.float32))
        return cls(key=key, weights=weights)


def pair_tensors(tensors):
    sides = {"A": {}, "B": {}}
    for name, tensor in tensors.items():
        module, side = parse_fine_tuned_lora_name(name)
        sides[side][module] = tensor
    for side, other in ("AB", "BA"):
        alone = [module for module in sides[side] if module not in sides[other]]
        if alone:
            raise ValueError(f"{alone[0]} has lora_{side} but no lora_{other}")
    return {module: LoRAPair(a, sides["B"][module]) for module, a in sides["A"].items()}
