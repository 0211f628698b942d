"""Whoever is due first: arrival plus a time for what is missing, so that nobody waits for ever."""


def due(request):
    """A time in seconds: a thousand missing tokens count as ten; a next token is due at once."""
    missing = request.num_tokens - request.num_computed_tokens
    return missing > 1, request.arrival_time + 0.01 * missing


class Capstone:
    @staticmethod
    def limits(config):
        if config.enable_chunked_prefill:
            enough = 112 if config.max_num_seqs < 112 else config.max_num_seqs
            if enough < config.max_num_batched_tokens:
                return replace(config, max_num_batched_tokens=enough)
        return config

    def schedule(self):
        from bisect import insort

        line = []
        while self.waiting:
            insort(line, self.waiting.pop_request(), key=due)
        self.waiting.prepend_requests(reversed(line))
        running, self.running = self.running, []
        for request in running:
            insort(self.running, request, key=due)
        return super().schedule()
