"""numpy draws all at once; the rounds call themselves."""


def compare_pairs(old, new, seed=0, draws=2000):
    import numpy as np

    if len(old) != len(new) or len(old) < 3:
        raise ValueError(f"{len(old)} and {len(new)} times: give at least 3 pairs")
    logs = np.log(np.array(new, dtype=float)) if min(new) > 0 else None
    if logs is None or min(old) <= 0:
        raise ValueError("the times of pairs must be above 0")
    logs = logs - np.log(np.array(old, dtype=float))
    picked = np.random.default_rng(seed).integers(0, len(logs), (draws, len(logs)))
    low, high = np.percentile(logs[picked].mean(axis=1), [2.5, 97.5])
    ratio = float(np.exp(logs.mean()))
    return Comparison(
        ratio, min(float(np.exp(low)), ratio), max(float(np.exp(high)), ratio), len(logs)
    )


def successive_halving(configs, measure, promise, least, most):
    if not len(configs) or not 0 < least <= most:
        raise ValueError(f"{len(configs)} configurations from {least} to {most} requests")
    measured = []

    def look(config, requests):
        ttft, tpot = measure(config, requests)
        measured.append(Measured(config, requests, ttft, tpot, promise.strain(ttft, tpot)))
        return measured[-1]

    def play(left, requests):
        requests = most if len(left) < 2 else min(requests, most)
        ranked = sorted((look(config, requests) for config in left), key=lambda one: one.strain)
        if requests == most:
            return ranked[0]
        return play([one.config for one in ranked[: -(-len(ranked) // 2)]], 2 * requests)

    first = play(list(configs), least)
    best = None if first.strain > 1 else first.config
    return Search(best=best, nearest=first.config, measured=measured)
