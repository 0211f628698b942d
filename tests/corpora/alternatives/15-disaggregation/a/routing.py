"""Each kind of event on its own; leading blocks by takewhile; the least cost by min."""


class PrefixIndex:
    def apply(self, worker, events):
        known = self.copies.setdefault(worker, {})
        for event in events:
            if isinstance(event, AllBlocksCleared):
                known.clear()
            elif isinstance(event, BlockStored):
                for name in event.block_hashes:
                    known[name] = known.get(name, 0) + 1
            else:
                for name in event.block_hashes:
                    if known.get(name, 0) > 1:
                        known[name] -= 1
                    else:
                        known.pop(name, None)

    def score(self, worker, block_hashes):
        from itertools import takewhile

        known = self.copies.get(worker, {})
        return sum(1 for _ in takewhile(known.__contains__, block_hashes))


def choose_worker(scores, queued_tokens, num_prompt_tokens, block_size):
    if len(scores) == 0:
        raise ValueError("nobody is there")

    def cost(worker):
        return queued_tokens[worker] + num_prompt_tokens - scores[worker] * block_size

    return min(range(len(scores)), key=cost)
