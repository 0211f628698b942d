"""What is still on its way stays in a new dictionary; what is given up is called off."""


class P2pTcpConnector:
    def get_finished(self, finished_req_ids):
        now, on_their_way, over = time.monotonic(), {}, set()
        for name, fetch in self.fetches.items():
            arrived = fetch.answer.done()
            if not arrived and fetch.deadline > now:
                on_their_way[name] = fetch
                continue
            if arrived:
                self._place(fetch)
            if not arrived:
                fetch.answer.cancel()
                self.invalid = self.invalid.union(fetch.pull.local_block_ids)
            self._tell_done(fetch.pull.source)
            over.add(name)
        self.fetches = on_their_way
        return self.leases.take_ended(now), over
