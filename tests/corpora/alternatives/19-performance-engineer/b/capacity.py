"""Integrals of events, numpy's order, fractions."""


def little(stays, window):
    if window <= 0:
        raise ValueError(f"no window: {window} s")
    if any(left < arrived for arrived, left in stays):
        raise ValueError("a request left before it arrived")
    events = sorted([(t, 1) for t, _ in stays] + [(t, -1) for _, t in stays])
    there, area, last = 0, 0.0, 0.0
    for time, change in events:
        area += there * (time - last)
        there, last = there + change, time
    number = area / window
    return Flow(len(stays) / window, number * window / len(stays) if stays else 0.0, number)


def blocks_for(flow, mean_tokens, block_size, headroom=2.0):
    from fractions import Fraction
    from math import ceil

    if block_size <= 0 or mean_tokens < 0 or headroom < 0:
        raise ValueError(f"block_size {block_size}, tokens {mean_tokens}, headroom {headroom}")
    each = Fraction(mean_tokens) / block_size + Fraction(1, 2)
    return ceil(Fraction(headroom) * Fraction(flow.number) * each)


def operational_laws(busy, completed, seconds, think=0.0):
    if completed < 1 or not busy or not seconds > 0:
        raise ValueError(f"{completed} requests, {len(busy)} parts, {seconds} s")
    longest = max(busy, key=busy.get)
    if busy[longest] / seconds > 1.0001:
        raise ValueError(f"{longest} was busy for {busy[longest]} s, and there were {seconds}")
    idle = busy[longest] == 0
    return Laws(
        completed / seconds,
        dict((part, time / completed) for part, time in busy.items()),
        dict((part, time / seconds) for part, time in busy.items()),
        longest,
        float("inf") if idle else completed / busy[longest],
        float("inf") if idle else (sum(busy.values()) + think * completed) / busy[longest],
    )


def throughput_bound(laws, number, think=0.0):
    rates = [laws.most]
    turn = sum(laws.demand.values(), think)
    if turn:
        rates.append(number / turn)
    return min(rates)


def percentile(values, percent):
    import heapq
    from math import ceil

    count = len(values)
    if not count or not 0 < percent <= 100:
        raise ValueError(f"percentile {percent} is none, or there are no values ({count})")
    rank = ceil(percent * count / 100)
    return heapq.nsmallest(rank, values)[-1]


def bounds_from_buckets(bounds, counts, percent):
    from math import ceil

    lows = [0.0, *bounds[:-1]]
    if len(counts) != len(bounds) or not any(counts) or not 0 < percent <= 100:
        raise ValueError(f"percentile {percent} of {sum(counts)} values, {len(bounds)} ends")
    left = ceil(sum(counts) * percent / 100)
    for low, high, count in zip(lows, bounds, counts, strict=True):
        if left <= count:
            return low, high
        left -= count


def with_omitted(latencies, interval):
    if not interval > 0:
        raise ValueError(f"interval {interval} is not above 0")

    def hidden(latency):
        while latency / interval >= 2 - 1e-9:
            latency -= interval
            yield latency

    return list(latencies) + [one for latency in latencies for one in hidden(latency)]


def by_schedule(planned, finished):
    import operator

    due, ends = list(planned), list(finished)
    if len(due) != len(ends):
        raise ValueError("a request has no end")
    return list(map(operator.sub, ends, due))
