"""All candidates in a list; `min` keeps the first of equal ones."""


def search_scale(x, weight, round_trip):
    wanted = x @ weight.T
    loudness = x.abs().mean(dim=0).clamp(min=1e-4)

    def cost(s):
        got = (x / s) @ round_trip(weight * s).T
        return (got - wanted).square().mean().item()

    powers = [loudness**ratio for ratio in RATIOS]
    candidates = [p / (p.max() * p.min()).sqrt() for p in powers]
    costs = [cost(s) for s in candidates]
    best = costs.index(min(costs))
    return candidates[best], costs[best]
