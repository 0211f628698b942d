"""Tables instead of comparisons: the arrows of a life are data, read from the names."""


class RequestStatus:
    @staticmethod
    def is_finished(status):
        return status.name.startswith("FINISHED_")

    @staticmethod
    def is_blocked(status):
        return status.name.startswith("WAITING_FOR_")

    @staticmethod
    def can_become(old, new):
        everything = set(RequestStatus)
        finished = {status for status in everything if RequestStatus.is_finished(status)}
        blocked = {status for status in everything if RequestStatus.is_blocked(status)}
        arrows = {status: set(finished) for status in everything - finished}
        for status in blocked:
            arrows[status].add(RequestStatus.WAITING)
        arrows[RequestStatus.WAITING] |= {RequestStatus.RUNNING} | blocked
        arrows[RequestStatus.RUNNING].add(RequestStatus.PREEMPTED)
        arrows[RequestStatus.PREEMPTED] |= {RequestStatus.RUNNING} | blocked
        return new in arrows.get(old, set())


class Request:
    @property
    def num_tokens(self):
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_tokens_with_spec(self):
        return self.num_tokens + len(self.spec_token_ids)

    def append_output_token_ids(self, token_ids):
        new = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        for view in (self.output_token_ids, self.all_token_ids):
            view += new
        self.update_block_hashes()

    def transition_to(self, status):
        if RequestStatus.can_become(self.status, status):
            self.status = status
            return
        raise ValueError(f"{self.request_id}: no arrow leads from {self.status} to {status}")
