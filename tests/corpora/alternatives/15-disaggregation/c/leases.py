"""Five refusals, each in its own words."""


class Leases:
    def _check(self, question):
        asked = question.request_id
        if question.engine_id != self.engine_id:
            raise ValueError(f"asked for {question.engine_id!r}; this is {self.engine_id!r}")
        if question.namespace != self.namespace:
            raise ValueError("asked for KV of another namespace")
        lease = self.leases.get(asked)
        if lease is None:
            raise ValueError(f"request {asked!r} has no lease here")
        if lease.name != question.lease:
            raise ValueError(f"request {asked!r} has another lease than {question.lease!r}")
        if lease.deadline is not None and time.monotonic() >= lease.deadline:
            raise ValueError(f"the lease of request {asked!r} ended at {lease.deadline}")
        strangers = set(question.block_ids) - set(lease.block_ids)
        if strangers:
            raise ValueError(f"blocks {sorted(strangers)} are not of request {asked!r}")

    def take_ended(self, now):
        with self._lock:
            ended = set()
            for request_id, lease in self.leases.items():
                if lease.deadline is None:
                    continue
                if request_id in self.released or lease.deadline <= now:
                    ended.add(request_id)
            for request_id in ended:
                del self.leases[request_id]
            self.released -= ended
            return ended
