"""Growth, count and first token as plain steps; a walk along the buckets."""


class IterationStats:
    def update_from_output(self, output, request, timestamp, now):
        growth = output.num_preemptions - request.num_preemptions
        if growth > 0:
            self.num_preempted += growth
            request.num_preemptions = output.num_preemptions
        if output.times is not None:
            request.times = output.times
        count = len(output.new_token_ids)
        if count == 0:
            return
        self.num_generation_tokens += count
        if request.num_generation_tokens == 0:
            self.num_prompt_tokens += request.num_prompt_tokens
            self.ttfts.append(now - request.arrival)
            request.first_token = timestamp
        else:
            self.itls.append(timestamp - request.last_token)
        request.num_generation_tokens += count
        request.last_token = timestamp

    def update_from_finished(self, request, finish_reason, now):
        stats = FinishedStats(finish_reason, request, now - request.arrival)
        times = request.times
        if request.num_generation_tokens > 0 and times is not None and times.scheduled is not None:
            stats.queued_time = times.scheduled - times.queued
            stats.prefill_time = request.first_token - times.scheduled
            stats.decode_time = request.last_token - request.first_token
            stats.inference_time = stats.prefill_time + stats.decode_time
        self.finished.append(stats)


def build_1_2_5_buckets(max_value):
    bounds: list[int] = []
    power = 1
    while power <= max_value:
        for digit in (1, 2, 5):
            if digit * power <= max_value:
                bounds.append(digit * power)
        power *= 10
    return bounds


def percentile_from_buckets(bounds, cumulative, quantile):
    if not cumulative or cumulative[-1] == 0:
        return None
    wanted = quantile * cumulative[-1]
    lower, below = 0.0, 0.0
    for bound, count in zip(bounds, cumulative, strict=True):
        if count >= wanted:
            if math.isinf(bound):
                return lower
            if count == below:
                return lower
            return lower + (bound - lower) * (wanted - below) / (count - below)
        lower, below = bound, count
    return lower
