"""Ratios multiplied up; rounds as a list of sizes."""


def compare_pairs(old, new, seed=0, draws=2000):
    import math
    import random

    if len(old) != len(new):
        raise ValueError(f"{len(old)} old and {len(new)} new times are no pairs")
    if len(old) < 3 or any(time <= 0 for time in [*old, *new]):
        raise ValueError("give at least 3 pairs of times above 0")
    ratios = [b / a for a, b in zip(old, new, strict=True)]
    draw, count = random.Random(seed), len(ratios)

    def mean(some):
        return math.prod(some) ** (1 / len(some))

    drawn = []
    for _ in range(draws):
        drawn.append(mean([ratios[draw.randrange(count)] for _ in range(count)]))
    drawn.sort()
    cut = int(draws * 0.025)
    return Comparison(mean(ratios), drawn[cut], drawn[-1 - cut], count)


def successive_halving(configs, measure, promise, least, most):
    if len(configs) == 0 or least < 1 or most < least:
        raise ValueError(f"{len(configs)} configurations, {least} to {most} requests")
    told, field = [], list(configs)
    size = least
    while True:
        if len(field) == 1:
            size = most
        scored = []
        for place, config in enumerate(field):
            figures = measure(config, size)
            strain = promise.strain(*figures)
            told.append(Measured(config, size, *figures, strain))
            scored.append((strain, place))
        scored.sort()
        if size == most:
            strain, place = scored[0]
            return Search(field[place] if strain <= 1 else None, field[place], told)
        field = [field[place] for _, place in scored[: (len(scored) + 1) // 2]]
        size = min(size * 2, most)
