"""A match over events, and two walks."""


class PrefixIndex:
    def apply(self, worker, events):
        known = self.copies.setdefault(worker, {})
        for event in events:
            match event:
                case BlockStored():
                    for name in event.block_hashes:
                        known[name] = known.get(name, 0) + 1
                case BlockRemoved():
                    for name in event.block_hashes:
                        if name in known:
                            known[name] -= 1
                            if known[name] == 0:
                                del known[name]
                case AllBlocksCleared():
                    known.clear()

    def score(self, worker, block_hashes):
        known = self.copies.get(worker, {})
        count = 0
        while count < len(block_hashes) and block_hashes[count] in known:
            count += 1
        return count


def choose_worker(scores, queued_tokens, num_prompt_tokens, block_size):
    if len(scores) == 0:
        raise ValueError("there is no worker to choose from")
    best, best_cost = 0, None
    for index, score in enumerate(scores):
        cost = queued_tokens[index] + num_prompt_tokens - score * block_size
        if best_cost is None or cost < best_cost:
            best, best_cost = index, cost
    return best
