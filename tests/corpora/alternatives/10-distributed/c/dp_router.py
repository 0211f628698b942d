"""A walk around the ring that keeps the best."""


class DPRouter:
    def get_core_engine_for_request(self, request_id, data_parallel_rank=None):
        num_engines = len(self.counts)
        if data_parallel_rank is not None:
            if data_parallel_rank not in range(num_engines):
                raise ValueError(
                    f"data_parallel_rank is {data_parallel_rank}; there are {num_engines} engines, "
                    f"0 to {num_engines - 1}"
                )
            chosen = data_parallel_rank
        else:
            chosen = self.next_engine
            for distance in range(1, num_engines):
                engine = (self.next_engine + distance) % num_engines
                if self.score(engine) < self.score(chosen):
                    chosen = engine
            self.next_engine = (chosen + 1) % num_engines
        self.counts[chosen][0] += 1
        self.engines[request_id] = chosen
        return chosen

    def score(self, engine):
        waiting, running = self.counts[engine]
        return WAITING_WEIGHT * waiting + running
