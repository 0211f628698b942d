"""A loop that remembers the best so far."""


class DPRouter:
    def get_core_engine_for_request(self, request_id, data_parallel_rank=None):
        count = len(self.counts)
        chosen = data_parallel_rank
        if chosen is None:
            chosen = self.next_engine
            for step in range(1, count):
                engine = (self.next_engine + step) % count
                if self.score(engine) < self.score(chosen):
                    chosen = engine
            self.next_engine = (chosen + 1) % count
        elif chosen < 0 or chosen >= count:
            raise ValueError(f"there is no engine {chosen}; there are {count}")
        waiting, running = self.counts[chosen]
        self.counts[chosen] = [waiting + 1, running]
        self.engines.update({request_id: chosen})
        return chosen

    def score(self, engine):
        return self.counts[engine][1] + WAITING_WEIGHT * self.counts[engine][0]
