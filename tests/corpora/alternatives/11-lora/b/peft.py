"""next() over the patterns; the end of a name by partition."""


class PEFTHelper:
    def scaling(self, module_name, rank):
        parts = module_name.split(".")
        ends = [".".join(parts[i:]) for i in range(len(parts))]
        alpha = next(
            (
                value
                for pattern, value in self.alpha_pattern.items()
                if any(re.fullmatch(pattern, end) for end in ends)
            ),
            self.lora_alpha,
        )
        return alpha / rank ** (0.5 if self.use_rslora else 1)


def parse_fine_tuned_lora_name(name):
    rest = name[17:] if name[:17] == "base_model.model." else name
    found = re.fullmatch(r"(.+)\.lora_([AB])\.weight", rest, re.DOTALL)
    if found is None:
        raise ValueError(f"tensor {name!r} does not end in '.lora_A.weight' or '.lora_B.weight'")
    return found[1], found[2]
