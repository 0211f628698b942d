"""A list of what may be taken, asked one after the other."""


def is_uniform_decode(num_tokens, num_reqs, max_query_len, decode_query_len):
    return num_tokens == decode_query_len * num_reqs and decode_query_len == max_query_len


def dispatch(
    mode,
    sizes,
    max_num_reqs,
    num_tokens,
    uniform_decode=False,
    decode_query_len=1,
    disable_full=False,
):
    fitting = [size for size in sizes if size >= num_tokens]
    candidates = []
    if fitting:
        size = min(fitting)
        if mode.separate_routine() and uniform_decode and size // decode_query_len <= max_num_reqs:
            uniform = BatchDescriptor(size, size // decode_query_len, True)
            candidates.append((CUDAGraphMode.FULL, uniform))
        rest = mode.mixed_mode()
        reqs = min(size, max_num_reqs) if rest.name == "FULL" else None
        candidates.append((rest, BatchDescriptor(size, reqs, False)))
    for kind, padded in candidates:
        if kind.name == "PIECEWISE" or (kind.name == "FULL" and not disable_full):
            return kind, padded
    return CUDAGraphMode.NONE, BatchDescriptor(num_tokens, None, False)
