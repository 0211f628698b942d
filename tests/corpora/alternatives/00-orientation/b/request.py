"""One expression each: membership in tuples, and a boolean sum of all arrows."""


class RequestStatus:
    @staticmethod
    def is_finished(status):
        unfinished = (RequestStatus.WAITING, RequestStatus.RUNNING, RequestStatus.PREEMPTED)
        return not (status in unfinished or RequestStatus.is_blocked(status))

    @staticmethod
    def is_blocked(status):
        return status in (
            RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
            RequestStatus.WAITING_FOR_REMOTE_KVS,
            RequestStatus.WAITING_FOR_STREAMING_REQ,
        )

    @staticmethod
    def can_become(old, new):
        waiting, running = RequestStatus.WAITING, RequestStatus.RUNNING
        return not RequestStatus.is_finished(old) and (
            RequestStatus.is_finished(new)
            or (RequestStatus.is_blocked(old) and new == waiting)
            or (
                old in (waiting, RequestStatus.PREEMPTED)
                and (new == running or RequestStatus.is_blocked(new))
            )
            or (old == running and new == RequestStatus.PREEMPTED)
        )


class Request:
    @property
    def num_tokens(self):
        return sum(1 for _ in self.all_token_ids)

    @property
    def num_tokens_with_spec(self):
        return len([*self.all_token_ids, *self.spec_token_ids])

    def append_output_token_ids(self, token_ids):
        try:
            iterator = iter(token_ids)
        except TypeError:
            iterator = iter((token_ids,))
        for token_id in iterator:
            self.output_token_ids.append(token_id)
            self.all_token_ids.append(token_id)
        self.update_block_hashes()

    def transition_to(self, status):
        allowed = RequestStatus.can_become(self.status, status)
        if allowed is False:
            raise ValueError(f"{self.status.name} -> {status.name} is no step of a request's life")
        self.status = status
