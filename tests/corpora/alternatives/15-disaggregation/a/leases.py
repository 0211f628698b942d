"""One list of what could be wrong; leases that are over are collected, then removed."""


class Leases:
    def _check(self, question):
        if question.engine_id != self.engine_id:
            raise ValueError(f"engine {self.engine_id!r} was asked for {question.engine_id!r}")
        if question.namespace != self.namespace:
            raise ValueError(f"KV of {self.namespace.hex()}, not of {question.namespace.hex()}")
        lease = self.leases.get(question.request_id)
        is_mine = lease is not None and lease.name == question.lease
        if not is_mine or not (lease.deadline is None or time.monotonic() < lease.deadline):
            raise ValueError(f"request {question.request_id!r} has no such lease")
        if not set(question.block_ids) <= set(lease.block_ids):
            raise ValueError(f"request {question.request_id!r} has not all of these blocks")

    def take_ended(self, now):
        ended = set()
        with self._lock:
            for request_id in list(self.leases):
                deadline = self.leases[request_id].deadline
                if deadline is None:
                    continue
                if now < deadline and request_id not in self.released:
                    continue
                del self.leases[request_id]
                self.released.discard(request_id)
                ended.add(request_id)
        return ended
