"""Bytes of a head first; requests one after the other: the first pays for the prefix."""


def bytes_per_token(spec):
    head = spec.head_dim * spec.dtype.itemsize + spec.pad_bytes
    keeping = spec.num_layers - len([one for one in spec.layers if one.kind == "mamba"])
    return keeping * spec.num_kv_heads * spec.planes * head


def num_blocks_in(memory, bytes_per_block):
    blocks = memory // bytes_per_block
    if blocks < 0:
        return 0
    return blocks


def requests_that_fit(num_blocks, block_size, num_tokens, num_shared_tokens=0):
    first = (num_tokens + block_size - 1) // block_size
    further = first - min(num_shared_tokens, num_tokens - 1) // block_size
    left = num_blocks - 1 - first
    return 0 if left < 0 else 1 + left // further
