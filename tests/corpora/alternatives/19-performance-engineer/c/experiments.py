"""The bootstrap by `random.choices` of places; halving by a loop over sizes."""


def compare_pairs(old, new, seed=0, draws=2000):
    old, new = list(old), list(new)
    if len(old) != len(new) or len(old) < 3 or any(time <= 0 for time in old + new):
        raise ValueError("at least 3 pairs of times above 0")
    ratios = [b / a for a, b in zip(old, new, strict=True)]
    count = len(ratios)

    def mean(values):
        return math.exp(math.fsum(map(math.log, values)) / count)

    draw = random.Random(seed)
    means = sorted(mean(draw.choices(ratios, k=count)) for _ in range(draws))
    cut = int(draws * 0.025)
    return Comparison(mean(ratios), means[cut], means[-1 - cut], count)


def successive_halving(configs, measure, promise, least, most):
    if len(configs) == 0:
        raise ValueError("no configuration")
    if least < 1 or most < least:
        raise ValueError(f"sizes {least} to {most}")
    measured, left, size = [], list(configs), least
    while True:
        size = most if len(left) == 1 else min(size, most)
        now = []
        for config in left:
            times = measure(config, size)
            now.append(Measured(config, size, *times, promise.strain(*times)))
        measured.extend(now)
        order = sorted(range(len(now)), key=lambda place: (now[place].strain, place))
        if size == most:
            break
        left = [now[place].config for place in order[: (len(order) + 1) // 2]]
        size *= 2
    first = now[order[0]]
    return Search(first.config if first.strain <= 1 else None, first.config, measured)
