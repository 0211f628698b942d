"""Over or not, one fetch at a time."""


class P2pTcpConnector:
    def get_finished(self, finished_req_ids):
        now = time.monotonic()
        over = set()
        for request_id, fetch in list(self.fetches.items()):
            if fetch.answer.done():
                self._place(fetch)
            elif now < fetch.deadline:
                continue
            else:
                self.invalid.update(fetch.pull.local_block_ids)
            del self.fetches[request_id]
            over.add(request_id)
            self._tell_done(fetch.pull.source)
        return self.leases.take_ended(now), over
