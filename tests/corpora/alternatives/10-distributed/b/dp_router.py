"""Engines are sorted by their score and by how far the turn is from them."""


class DPRouter:
    def get_core_engine_for_request(self, request_id, data_parallel_rank=None):
        engines = range(len(self.counts))
        if data_parallel_rank is None:
            turn = self.next_engine

            def order(engine):
                return self.score(engine), (engine - turn) % len(engines)

            best = sorted(engines, key=order)[0]
            self.next_engine = best + 1 if best + 1 < len(engines) else 0
        elif data_parallel_rank in engines:
            best = data_parallel_rank
        else:
            raise ValueError(f"data_parallel_rank {data_parallel_rank} is none of {list(engines)}")
        self.engines[request_id] = best
        self.counts[best] = [self.counts[best][0] + 1, self.counts[best][1]]
        return best

    def score(self, engine):
        waiting, running = self.counts[engine]
        return sum([running] + [waiting] * WAITING_WEIGHT)
