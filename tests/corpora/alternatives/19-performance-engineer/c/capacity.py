"""Rates first; ranks by searching the running counts."""


def little(stays, window):
    lengths = [left - arrived for arrived, left in stays]
    if not window > 0 or (lengths and min(lengths) < 0):
        raise ValueError(f"window {window}, stays {stays}")
    if not lengths:
        return Flow(0.0, 0.0, 0.0)
    rate, mean = len(lengths) / window, math.fsum(lengths) / len(lengths)
    return Flow(rate=rate, seconds=mean, number=rate * mean)


def blocks_for(flow, mean_tokens, block_size, headroom=2.0):
    if min(mean_tokens, headroom) < 0 or block_size < 1:
        raise ValueError("tokens, block size and headroom are not possible")
    return math.ceil(flow.number * headroom * (2 * mean_tokens + block_size) / (2 * block_size))


def operational_laws(busy, completed, seconds, think=0.0):
    if not busy or completed <= 0 or seconds <= 0:
        raise ValueError("without a part, a request or time there are no laws")
    for part, time in busy.items():
        if time > seconds * (1 + 1e-4):
            raise ValueError(f"{part} was busy {time} s of {seconds} s")
    rate = completed / seconds
    demand = {part: time / completed for part, time in busy.items()}
    used = {part: rate * own for part, own in demand.items()}
    bottleneck, largest = next(iter(demand)), 0.0
    for part, own in demand.items():
        if own > largest:
            bottleneck, largest = part, own
    if not largest:
        return Laws(rate, demand, used, bottleneck, math.inf, math.inf)
    knee = (math.fsum(demand.values()) + think) / largest
    return Laws(rate, demand, used, bottleneck, 1 / largest, knee)


def throughput_bound(laws, number, think=0.0):
    alone = math.fsum(laws.demand.values()) + think
    return min(laws.most, number / alone) if alone > 0 else laws.most


def percentile(values, percent):
    if len(values) == 0 or percent <= 0 or percent > 100:
        raise ValueError(f"{percent} % of {len(values)} values")
    ordered = sorted(values)
    for place, value in enumerate(ordered, start=1):
        if place * 100 >= percent * len(ordered):
            return value
    return ordered[-1]


def bounds_from_buckets(bounds, counts, percent):
    from itertools import accumulate

    if len(bounds) != len(counts) or sum(counts) == 0 or percent <= 0 or percent > 100:
        raise ValueError(f"{percent} % of buckets {counts} that end at {bounds}")
    totals = list(accumulate(counts))
    place = next(i for i, total in enumerate(totals) if total * 100 >= percent * totals[-1])
    return (bounds[place - 1] if place else 0.0), bounds[place]


def with_omitted(latencies, interval):
    if interval <= 0:
        raise ValueError("the interval must be above 0")
    added = []
    for latency in latencies:
        for hidden in range(1, int(latency / interval + 1e-9)):
            added.append(latency - hidden * interval)
    return [*latencies, *added]


def by_schedule(planned, finished):
    return [end - due for due, end in zip(planned, finished, strict=True)]
