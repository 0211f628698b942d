"""Sorted names: the two halves of a module stand beside each other."""


class LoRAModel:
    @classmethod
    def from_tensors(cls, key, tensors, config, targets):
        weights = {}
        for name, pair in pair_tensors(tensors).items():
            target = targets[name]
            if target.module not in weights:
                weights[target.module] = [None] * target.num_slices
            rank = pair.a.size(0)
            scaled = pair.b.to(torch.float32) * config.scaling(name, rank)
            weights[target.module][target.index] = pair._replace(b=scaled)
        return cls(key, weights)


def pair_tensors(tensors):
    parsed = {parse_fine_tuned_lora_name(name): tensor for name, tensor in tensors.items()}
    pairs = {}
    for module, half in parsed:
        other = "A" if half == "B" else "B"
        if (module, other) not in parsed:
            raise ValueError(f"{module} has lora_{half} but no lora_{other}")
        pairs[module] = LoRAPair(parsed[module, "A"], parsed[module, "B"])
    return pairs
