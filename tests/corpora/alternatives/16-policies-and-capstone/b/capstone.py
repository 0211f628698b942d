"""A share of the given budget; a heap is emptied into a new queue, the shortest text first."""


class Capstone:
    @staticmethod
    def limits(config):
        if not config.enable_chunked_prefill:
            return config
        given = config.max_num_batched_tokens
        share = sorted([given // 18, config.max_num_seqs, given])[1]  # a token for everybody
        return replace(config, max_num_batched_tokens=share)

    def schedule(self):
        import heapq

        from mini_vllm.core.request_queue import create_request_queue

        heap = [(r.num_tokens, i, r) for i, r in enumerate(self.waiting)]
        heapq.heapify(heap)
        self.waiting = create_request_queue(self.scheduler_config.policy)
        while heap:
            self.waiting.add_request(heapq.heappop(heap)[-1])
        order = {r.request_id: (_num_missing(r) > 1, r.num_tokens) for r in self.running}
        self.running = sorted(self.running, key=lambda request: order[request.request_id])
        return super().schedule()
