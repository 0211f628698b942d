"""Sums with loops, laws from each other, ranks by counting."""


def little(stays, window):
    if not window > 0:
        raise ValueError(f"the window is {window} s long; it must be above 0")
    area = 0.0
    for arrived, left in stays:
        if left < arrived:
            raise ValueError(f"{left} s is before {arrived} s, when the request arrived")
        area += left - arrived
    rate = len(stays) / window
    seconds = area / max(len(stays), 1)
    return Flow(rate=rate, seconds=seconds, number=rate * seconds)


def blocks_for(flow, mean_tokens, block_size, headroom=2.0):
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; it must be at least 1")
    if mean_tokens < 0 or headroom < 0:
        raise ValueError(f"{mean_tokens} tokens, {headroom} headroom, block_size {block_size}: < 0")
    halves = (2 * mean_tokens + block_size) / (2 * block_size)
    return int(-(-headroom * flow.number * halves // 1))


def operational_laws(busy, completed, seconds, think=0.0):
    if seconds <= 0 or completed <= 0 or len(busy) == 0:
        raise ValueError(f"no laws from {len(busy)} parts, {completed} requests and {seconds} s")
    throughput = completed / seconds
    utilisation, demand = {}, {}
    bottleneck = None
    for part, time in busy.items():
        if time > seconds * 1.0001:
            raise ValueError(f"{part} was busy for {time} s of {seconds} s")
        utilisation[part] = time / seconds
        demand[part] = time / completed
        if bottleneck is None or demand[part] > demand[bottleneck]:
            bottleneck = part
    try:
        most = 1 / demand[bottleneck]
        knee = (think + sum(demand.values())) / demand[bottleneck]
    except ZeroDivisionError:
        most = knee = float("inf")
    return Laws(throughput, demand, utilisation, bottleneck, most, knee)


def throughput_bound(laws, number, think=0.0):
    turn = think + sum(laws.demand.values())
    if turn == 0 or number >= laws.most * turn:
        return laws.most
    return number / turn


def percentile(values, percent):
    if len(values) == 0 or percent <= 0 or percent > 100:
        raise ValueError(f"no percentile {percent} of {len(values)} values")
    ordered = sorted(values)
    for place, value in enumerate(ordered, 1):
        if 100 * place >= percent * len(ordered):
            return value
    return ordered[-1]


def bounds_from_buckets(bounds, counts, percent):
    import itertools

    if len(bounds) != len(counts):
        raise ValueError(f"{sum(counts)} values, {len(counts)} buckets, {len(bounds)} ends")
    if sum(counts) == 0 or percent <= 0 or percent > 100:
        raise ValueError(f"no percentile {percent} of {sum(counts)} values")
    cumulative = list(itertools.accumulate(counts))
    place = next(i for i, seen in enumerate(cumulative) if 100 * seen >= percent * cumulative[-1])
    return (bounds[place - 1] if place else 0.0), bounds[place]


def with_omitted(latencies, interval):
    if interval <= 0:
        raise ValueError(f"the interval is {interval} s; it must be above 0")
    missing = []
    for latency in latencies:
        hidden = int(latency / interval + 1e-6) - 1
        missing += [latency - i * interval for i in range(1, hidden + 1)]
    return [*latencies, *missing]


def by_schedule(planned, finished):
    if len(planned) != len(finished):
        raise ValueError(f"{len(planned)} requests were due, {len(finished)} finished")
    return [finished[i] - planned[i] for i in range(len(planned))]
