"""Three cases of gaps, and a plain counter."""


def arrival_times(num_requests, rate, burstiness, rng):
    if math.isinf(rate):
        return [0.0] * num_requests
    if math.isinf(burstiness):
        gaps = np.full(num_requests, 1 / rate)
    else:
        gaps = rng.gamma(shape=burstiness, scale=1 / (rate * burstiness), size=num_requests)
    times = np.cumsum(gaps)
    return (times * (num_requests / rate / times[-1])).tolist()


def goodput(results, slos, duration):
    met = 0
    for result in results:
        measured = {"ttft": result.ttft, "tpot": result.tpot, "e2el": result.latency}
        if all(measured[name] * 1000 <= limit for name, limit in slos.items()):
            met += 1
    return met / duration
