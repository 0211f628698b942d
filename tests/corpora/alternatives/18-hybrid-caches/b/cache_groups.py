"""Lists by kind from a comparison of all, and a search by the standard library."""


def group_layers(kinds):
    kinds = list(kinds)
    places = {kind: [] for kind in kinds}
    for layer in range(len(kinds)):
        places[kinds[layer]].append(layer)
    sizes = sorted(len(own) for own in places.values())
    size = sizes[-1] if sizes[-1] * 2 < sizes[0] * 3 else sizes[0]

    def dealt(own):
        number = (len(own) + size - 1) // size
        return [own[start::number] for start in range(number)]

    return [group for own in places.values() for group in dealt(own)]


class GroupSpec:
    def peak_blocks(self, num_tokens, max_num_batched_tokens, max_model_len):
        def blocks(tokens):
            return (tokens + self.block_size - 1) // self.block_size

        most = {
            "full": lambda: num_tokens,
            "sliding_window": lambda: (
                blocks(min(self.window + max_num_batched_tokens - 1, max_model_len)) + 1
            ),
            "chunked_local": lambda: blocks(
                min(self.chunk + max_num_batched_tokens, max_model_len)
            ),
            "mamba": lambda: 2 if self.mode == "align" else num_tokens,
        }[self.kind]()
        return min(blocks(num_tokens), most)


def longest_sequence(groups, num_blocks, max_num_batched_tokens, max_model_len):
    from bisect import bisect_right

    lengths = range(max_model_len + 1)
    return (
        bisect_right(
            lengths,
            num_blocks,
            key=lambda n: peak_blocks(groups, n, max_num_batched_tokens, max_model_len),
        )
        - 1
    )
