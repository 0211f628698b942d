"""All graphs are written down, as upstream does, and the step looks its own up."""


def is_uniform_decode(num_tokens, num_reqs, max_query_len, decode_query_len):
    return (max_query_len, num_tokens) == (decode_query_len, decode_query_len * num_reqs)


def dispatch(
    mode,
    sizes,
    max_num_reqs,
    num_tokens,
    uniform_decode=False,
    decode_query_len=1,
    disable_full=False,
):
    full, pieces = set(), set()
    mixed = mode.mixed_mode()
    for size in sizes:
        if mixed is CUDAGraphMode.FULL:
            full.add(BatchDescriptor(size, min(size, max_num_reqs)))
        if mixed is CUDAGraphMode.PIECEWISE:
            pieces.add(BatchDescriptor(size))
        if mode.separate_routine() and size in range(
            decode_query_len, decode_query_len * max_num_reqs + 1
        ):
            full.add(BatchDescriptor(size, size // decode_query_len, True))
    size = min((size for size in sizes if size >= num_tokens), default=num_tokens)
    apart = uniform_decode and mode.separate_routine()
    number = size // decode_query_len if apart else min(size, max_num_reqs)
    exact = BatchDescriptor(size, number, apart)
    if exact in full and not disable_full:
        return CUDAGraphMode.FULL, exact
    if BatchDescriptor(size) in pieces and size >= num_tokens:
        return CUDAGraphMode.PIECEWISE, BatchDescriptor(size)
    return CUDAGraphMode.NONE, BatchDescriptor(num_tokens)
