"""A reason, or none."""


class Leases:
    def _check(self, question):
        reason = None
        lease = self.leases.get(question.request_id)
        if (question.engine_id, question.namespace) != (self.engine_id, self.namespace):
            reason = f"engine {self.engine_id!r} and its format are not those that were asked for"
        elif lease is None or lease.name != question.lease:
            reason = "there is no such lease"
        elif lease.deadline is not None and lease.deadline <= time.monotonic():
            reason = "the lease is over"
        elif any(block_id not in lease.block_ids for block_id in question.block_ids):
            reason = "a block is not of this lease"
        if reason is not None:
            raise ValueError(f"request {question.request_id!r}: {reason}")

    def take_ended(self, now):
        def is_over(request_id, lease):
            if lease.deadline is None:
                return False
            return request_id in self.released or lease.deadline <= now

        with self._lock:
            ended = {name for name, lease in self.leases.items() if is_over(name, lease)}
            for name in ended:
                self.leases.pop(name)
                self.released.discard(name)
        return ended
