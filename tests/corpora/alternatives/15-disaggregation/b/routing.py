"""Counters, and a search for the first gap."""


class PrefixIndex:
    def apply(self, worker, events):
        self.copies.setdefault(worker, {})
        for event in events:
            book = self.copies[worker]
            if isinstance(event, AllBlocksCleared):
                self.copies[worker] = {}
                continue
            for name in event.block_hashes:
                count = book.pop(name, 0)
                count += 1 if isinstance(event, BlockStored) else -1
                if count >= 1:
                    book[name] = count

    def score(self, worker, block_hashes):
        known = self.copies.get(worker) or {}
        length = 0
        while length < len(block_hashes) and block_hashes[length] in known:
            length += 1
        return length


def choose_worker(scores, queued_tokens, num_prompt_tokens, block_size):
    if not list(scores):
        raise ValueError("no worker, no choice")
    best, least = 0, None
    for worker, (score, queued) in enumerate(zip(scores, queued_tokens, strict=True)):
        cost = queued + (num_prompt_tokens - score * block_size)
        if least is None or cost < least:
            best, least = worker, cost
    return best
