"""Gaps first, then a running sum."""


def arrival_times(num_requests, rate, burstiness, rng):
    if rate == math.inf:
        return [0.0 for _ in range(num_requests)]
    if burstiness == math.inf:
        return [(i + 1) / rate for i in range(num_requests)]
    gaps = rng.gamma(shape=burstiness, scale=1 / rate / burstiness, size=num_requests)
    total, times = float(gaps.sum()), []
    stretch, now = num_requests / rate / total, 0.0
    for gap in gaps:
        now += float(gap) * stretch
        times.append(now)
    return times


def goodput(results, slos, duration):
    good = 0
    for result in results:
        if not result.success:
            continue
        seen = {"ttft": result.ttft, "tpot": result.tpot, "e2el": result.latency}
        if not any(seen[name] * 1000 > limit for name, limit in slos.items()):
            good += 1
    return good / duration
