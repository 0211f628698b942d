"""What is free is compared with what is asked for; no limit is infinitely many."""


class Admission:
    def check(self, num_reqs, num_tokens):
        infinity = float("inf")
        free_reqs = (infinity if self.max_reqs is None else self.max_reqs) - len(self.requests)
        if num_reqs > free_reqs:
            raise QueueFullError(
                f"{num_reqs} do not fit beside {len(self.requests)}: "
                f"max_num_queued_reqs={self.max_reqs} leaves {free_reqs} free; try again"
            )
        sizes = [request.num_prompt_tokens for request in self.requests.values()]
        free_tokens = (infinity if self.max_tokens is None else self.max_tokens) - sum(sizes)
        if num_tokens > free_tokens:
            raise QueueFullError(
                f"{num_tokens} do not fit beside {sum(sizes)}: "
                f"max_num_queued_tokens={self.max_tokens} leaves {free_tokens} free; try again"
            )
