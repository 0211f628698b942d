"""bisect finds the bucket; a generator writes the bounds."""


def endless_bounds():
    from itertools import count

    for power in count():
        yield from (10**power, 2 * 10**power, 5 * 10**power)


def build_1_2_5_buckets(max_value):
    from itertools import takewhile

    return list(takewhile(lambda bound: bound <= max_value, endless_bounds()))


def percentile_from_buckets(bounds, cumulative, quantile):
    from bisect import bisect_left

    if not cumulative or not cumulative[-1]:
        return None
    rank = quantile * cumulative[-1]
    place = bisect_left(cumulative, rank)
    edges, counts = [0.0, *bounds], [0.0, *cumulative]
    width, inside = edges[place + 1] - edges[place], counts[place + 1] - counts[place]
    if width == math.inf or inside == 0:
        return edges[place]
    return edges[place] + width * ((rank - counts[place]) / inside)


class IterationStats:
    def update_from_output(self, output, request, timestamp, now):
        known = request.num_preemptions
        request.num_preemptions = max(known, output.num_preemptions)
        self.num_preempted += request.num_preemptions - known
        request.times = request.times if output.times is None else output.times
        if output.new_token_ids:
            if request.num_generation_tokens:
                self.itls += [timestamp - request.last_token]
            else:
                self.ttfts += [now - request.arrival]
                self.num_prompt_tokens += request.num_prompt_tokens
                request.first_token = timestamp
            request.last_token = timestamp
            request.num_generation_tokens += len(output.new_token_ids)
            self.num_generation_tokens += len(output.new_token_ids)

    def update_from_finished(self, request, finish_reason, now):
        done = FinishedStats(finish_reason, request, e2e_latency=now - request.arrival)
        times = request.times
        if request.num_generation_tokens > 0 and times is not None:
            start = times.scheduled
            if start is not None:
                done.queued_time = start - times.queued
                done.decode_time = request.last_token - request.first_token
                done.prefill_time = request.first_token - start
                done.inference_time = request.last_token - start
        self.finished += [done]
