"""Products of lists, and divmod."""


def bytes_per_token(spec):
    import math

    kinds = [layer.kind for layer in spec.layers] or ["full"] * spec.num_layers
    numbers = math.prod([spec.planes, spec.num_kv_heads, spec.width])
    return sum(numbers * spec.dtype.itemsize for kind in kinds if kind != "mamba")


def num_blocks_in(memory, bytes_per_block):
    whole, _ = divmod(max(0, memory), bytes_per_block)
    return whole


def requests_that_fit(num_blocks, block_size, num_tokens, num_shared_tokens=0):
    whole, rest = divmod(num_tokens, block_size)
    needed = whole + bool(rest)
    common = min(num_shared_tokens // block_size, needed - 1)
    usable = num_blocks - 1
    if usable < needed:
        return 0
    return (usable - common) // (needed - common)
