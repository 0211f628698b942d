"""Sorts fetches by what has become of them, then deals with each kind."""


class P2pTcpConnector:
    def get_finished(self, finished_req_ids):
        now = time.monotonic()
        done = {name for name, fetch in self.fetches.items() if fetch.answer.done()}
        late = {name for name, f in self.fetches.items() if now >= f.deadline} - done
        for name in done | late:
            fetch = self.fetches.pop(name)
            if name in done:
                self._place(fetch)
            else:
                self.invalid.update(fetch.pull.local_block_ids)
            self._tell_done(fetch.pull.source)
        return self.leases.take_ended(now), done | late
