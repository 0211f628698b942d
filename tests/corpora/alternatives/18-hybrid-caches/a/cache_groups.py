"""Kinds are counted first, cards dealt one by one; the longest sequence is built from bits."""


def group_layers(kinds):
    counts = {kind: 0 for kind in kinds}
    for kind in kinds:
        counts[kind] += 1
    size = min(counts.values())
    if 2 * max(counts.values()) < 3 * size:
        size = max(counts.values())
    groups = []
    for kind, count in counts.items():
        own = [[] for _ in range(-(-count // size))]
        place = 0
        for layer, other in enumerate(kinds):
            if other == kind:
                own[place % len(own)].append(layer)
                place += 1
        groups.extend(own)
    return groups


class GroupSpec:
    def peak_blocks(self, num_tokens, max_num_batched_tokens, max_model_len):
        limit = whole = -(-num_tokens // self.block_size)
        if self.kind == "mamba" and self.mode == "align":
            limit = 2
        if self.kind in ("sliding_window", "chunked_local"):
            is_window = self.kind == "sliding_window"
            kept = self.window - 1 if is_window else self.chunk
            tokens = min(max_model_len, kept + max_num_batched_tokens)
            limit = -(-tokens // self.block_size) + is_window
        return min(whole, limit)


def longest_sequence(groups, num_blocks, max_num_batched_tokens, max_model_len):
    length = 0
    for bit in reversed(range(max_model_len.bit_length())):
        longer = length + (1 << bit)
        if longer > max_model_len:
            continue
        held = peak_blocks(groups, longer, max_num_batched_tokens, max_model_len)
        if held <= num_blocks:
            length = longer
    return length
