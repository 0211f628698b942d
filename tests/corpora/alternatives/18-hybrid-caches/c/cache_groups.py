"""Layers are grouped by sorting; the longest sequence by doubling and halving."""


def group_layers(kinds):
    order = list(dict.fromkeys(kinds))
    layers = [[i for i in range(len(kinds)) if kinds[i] == kind] for kind in order]
    rarest, commonest = min(map(len, layers)), max(map(len, layers))
    size = commonest if commonest / rarest < 1.5 else rarest
    found = []
    for own in layers:
        hands = []
        number = -(-len(own) // size)
        for hand in range(number):
            hands.append([own[i] for i in range(len(own)) if i % number == hand])
        found += hands
    return found


class GroupSpec:
    def peak_blocks(self, num_tokens, max_num_batched_tokens, max_model_len):
        whole, rest = divmod(num_tokens, self.block_size)
        whole += rest > 0
        if self.kind == "mamba":
            return min(whole, 2) if self.mode == "align" else whole
        if self.kind == "full":
            return whole
        beside, more = (self.window - 1, 1) if self.kind == "sliding_window" else (self.chunk, 0)
        tokens = min(beside + max_num_batched_tokens, max_model_len)
        return min(whole, cdiv(tokens, self.block_size) + more)


def longest_sequence(groups, num_blocks, max_num_batched_tokens, max_model_len):
    def fits(length):
        held = [g.peak_blocks(length, max_num_batched_tokens, max_model_len) for g in groups]
        return sum(held) <= num_blocks

    if fits(max_model_len):
        return max_model_len
    high = 1
    while high < max_model_len and fits(high):
        high *= 2
    low, high = high // 2, min(high, max_model_len)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
