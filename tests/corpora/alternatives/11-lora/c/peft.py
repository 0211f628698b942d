"""Every tail of the name is tried; the two ends of a tensor's name stand in a dictionary."""


class PEFTHelper:
    def scaling(self, module_name, rank):
        alpha = next(
            (value for key, value in self.alpha_pattern.items() if fits(key, module_name)),
            self.lora_alpha,
        )
        return alpha * (rank**-0.5 if self.use_rslora else 1 / rank)


def fits(pattern, name):
    parts = name.split(".")
    return any(re.fullmatch(pattern, ".".join(parts[i:])) for i in range(len(parts)))


def parse_fine_tuned_lora_name(name):
    ends = {".lora_A.weight": "A", ".lora_B.weight": "B"}
    rest = name[len(PREFIX) :] if name.startswith(PREFIX) else name
    for end, letter in ends.items():
        if rest.endswith(end):
            return rest[: -len(end)], letter
    raise ValueError(f"{name!r} is no weight of an adapter: it must end in {' or '.join(ends)}")
