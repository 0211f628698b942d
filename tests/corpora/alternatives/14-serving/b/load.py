"""numpy throughout."""


def arrival_times(num_requests, rate, burstiness, rng):
    if math.isinf(rate):
        return np.zeros(num_requests).tolist()
    metronome = math.isinf(burstiness)
    gaps = np.ones(num_requests) if metronome else rng.gamma(burstiness, 1.0, num_requests)
    times = gaps.cumsum()
    times *= num_requests / (rate * times[-1])
    return times.tolist()


def goodput(results, slos, duration):
    limits = [(name, limit / 1000) for name, limit in slos.items()]

    def meets(result):
        seen = dict(ttft=result.ttft, tpot=result.tpot, e2el=result.latency)
        return all(seen[name] <= limit + 1e-12 for name, limit in limits)

    return sum(meets(result) for result in results if result.success) / duration
