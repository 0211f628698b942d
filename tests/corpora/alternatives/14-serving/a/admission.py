"""Both counts in one walk."""


class Admission:
    def check(self, num_reqs, num_tokens):
        there = [request.num_prompt_tokens for request in self.requests.values()]
        for name, waiting, more, limit in (
            ("max_num_queued_reqs", len(there), num_reqs, self.max_reqs),
            ("max_num_queued_tokens", sum(there), num_tokens, self.max_tokens),
        ):
            if limit is not None and waiting + more > limit:
                raise QueueFullError(f"{waiting} + {more} would exceed {name}={limit}; try later")
