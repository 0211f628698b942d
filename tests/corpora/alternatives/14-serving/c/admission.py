"""Two questions, each with its own sum."""


class Admission:
    def check(self, num_reqs, num_tokens):
        present = len(self.requests)
        if self.max_reqs is not None and present + num_reqs > self.max_reqs:
            raise QueueFullError(
                f"{present} requests are here and {num_reqs} more would come; the limit is "
                f"max_num_queued_reqs={self.max_reqs}; try again later"
            )
        if self.max_tokens is None:
            return
        tokens = sum(request.num_prompt_tokens for request in self.requests.values())
        if tokens + num_tokens > self.max_tokens:
            raise QueueFullError(
                f"{tokens} prompt tokens are here and {num_tokens} more would come; the limit is "
                f"max_num_queued_tokens={self.max_tokens}; try again later"
            )
