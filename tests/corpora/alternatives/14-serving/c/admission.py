"""Tokens are counted before requests, and each limit has an error of its own kind."""


class Admission:
    def check(self, num_reqs, num_tokens):
        class TooManyTokensError(QueueFullError):
            pass

        class TooManyRequestsError(QueueFullError):
            pass

        tokens = sum(request.num_prompt_tokens for request in self.requests.values())
        if self.max_tokens is not None and tokens + num_tokens > self.max_tokens:
            raise TooManyTokensError(
                f"{tokens} prompt tokens are here and {num_tokens} more would come; the limit is "
                f"max_num_queued_tokens={self.max_tokens}; try again later"
            )
        present = len(self.requests)
        if self.max_reqs is not None and present + num_reqs > self.max_reqs:
            raise TooManyRequestsError(
                f"{present} requests are here and {num_reqs} more would come; the limit is "
                f"max_num_queued_reqs={self.max_reqs}; try again later"
            )
