"""Regular expressions compiled; names split at their dots."""


class PEFTHelper:
    def scaling(self, module_name, rank):
        alpha = self.lora_alpha
        fitting = [
            value
            for pattern, value in self.alpha_pattern.items()
            if re.compile(rf"(?:.*\.)?(?:{pattern})").fullmatch(module_name)
        ]
        if fitting:
            alpha = fitting[0]
        return _divided(alpha, rank, self)


def _divided(alpha, rank, config):
    divisor = rank
    if config.use_rslora:
        divisor = math.sqrt(rank)
    return alpha / divisor


def parse_fine_tuned_lora_name(name):
    if name.startswith("base_model.model."):
        rest = name[len("base_model.model.") :]
    else:
        rest = name
    parts = rest.split(".")
    if len(parts) < 3 or parts[-1] != "weight" or parts[-2] not in ("lora_A", "lora_B"):
        raise ValueError(f"{name!r} is no tensor of an adapter of linear layers")
    return ".".join(parts[:-2]), parts[-2][-1]
