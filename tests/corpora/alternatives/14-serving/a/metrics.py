"""Times by name; buckets one after another."""


def build_1_2_5_buckets(max_value):
    bounds, step = [], 1
    while step <= max_value:
        bounds += [bound for bound in (step, 2 * step, 5 * step) if bound <= max_value]
        step *= 10
    return bounds


def percentile_from_buckets(bounds, cumulative, quantile):
    total = cumulative[-1] if len(cumulative) else 0
    if not total:
        return None
    rank, lower, below = quantile * total, 0.0, 0.0
    for bound, count in zip(bounds, cumulative, strict=True):
        if count >= rank:
            if bound == math.inf or count == below:
                return lower
            return lower + (rank - below) / (count - below) * (bound - lower)
        lower, below = bound, count


class IterationStats:
    def update_from_output(self, output, request, timestamp, now):
        if output.num_preemptions > request.num_preemptions:
            self.num_preempted += output.num_preemptions - request.num_preemptions
            request.num_preemptions = output.num_preemptions
        if output.times is not None:
            request.times = output.times
        count = len(output.new_token_ids)
        if count == 0:
            return
        is_first = request.num_generation_tokens == 0
        if is_first:
            self.ttfts.append(now - request.arrival)
            self.num_prompt_tokens += request.num_prompt_tokens
            request.first_token = timestamp
        else:
            self.itls.append(timestamp - request.last_token)
        request.last_token = timestamp
        for counter in (self, request):
            counter.num_generation_tokens += count

    def update_from_finished(self, request, finish_reason, now):
        stats = FinishedStats(finish_reason, request, now - request.arrival)
        self.finished.append(stats)
        times, first, last = request.times, request.first_token, request.last_token
        if not request.num_generation_tokens or not times or times.scheduled is None:
            return
        stats.queued_time, stats.prefill_time = (
            times.scheduled - times.queued,
            first - times.scheduled,
        )
        stats.decode_time, stats.inference_time = last - first, last - times.scheduled
