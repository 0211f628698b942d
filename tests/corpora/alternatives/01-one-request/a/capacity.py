"""Loops and counters instead of formulas."""


def bytes_per_token(spec):
    total = 0
    for index in range(spec.num_layers):
        if spec.layers and spec.layers[index].kind == "mamba":
            continue
        for _ in range(spec.planes):
            total += spec.num_kv_heads * spec.width * spec.dtype.itemsize
    return total


def num_blocks_in(memory, bytes_per_block):
    return memory // bytes_per_block if memory > 0 else 0


def requests_that_fit(num_blocks, block_size, num_tokens, num_shared_tokens=0):
    needed = 0
    while needed * block_size < num_tokens:
        needed += 1
    shared = 0
    while (shared + 1) * block_size <= num_shared_tokens and (shared + 1) * block_size < num_tokens:
        shared += 1
    free, served = num_blocks - 1 - shared, 0
    while free >= needed - shared:
        free -= needed - shared
        served += 1
    return served
