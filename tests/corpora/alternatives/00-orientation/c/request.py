"""Pattern matching, and hashes updated token by token."""


class RequestStatus:
    @staticmethod
    def is_finished(status):
        return int(status) >= int(RequestStatus.FINISHED_STOPPED)

    @staticmethod
    def is_blocked(status):
        return int(status) - int(RequestStatus.WAITING) in range(
            1, int(RequestStatus.RUNNING) - int(RequestStatus.WAITING)
        )

    @staticmethod
    def can_become(old, new):
        def kind(status):
            if RequestStatus.is_finished(status):
                return "finished"
            return "blocked" if RequestStatus.is_blocked(status) else status.name.lower()

        match kind(old), kind(new):
            case "finished", _:
                return False
            case _, "finished":
                return True
            case "waiting" | "preempted", "running" | "blocked":
                return True
            case ("blocked", "waiting") | ("running", "preempted"):
                return True
        return False


class Request:
    @property
    def num_tokens(self):
        return self.all_token_ids.__len__()

    @property
    def num_tokens_with_spec(self):
        count = self.num_tokens
        for _ in self.spec_token_ids:
            count += 1
        return count

    def append_output_token_ids(self, token_ids):
        if not isinstance(token_ids, int):
            for token_id in token_ids:
                self.append_output_token_ids(token_id)
            return
        self.output_token_ids.insert(len(self.output_token_ids), token_ids)
        self.all_token_ids.insert(len(self.all_token_ids), token_ids)
        self.update_block_hashes()

    def transition_to(self, status):
        before, self.status = self.status, status
        if not RequestStatus.can_become(before, status):
            self.status = before
            raise ValueError(f"request {self.request_id} stays {before}, it cannot be {status}")
