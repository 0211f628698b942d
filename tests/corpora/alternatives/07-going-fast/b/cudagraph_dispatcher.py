"""Early ends first; the modes by their names."""


def is_uniform_decode(num_tokens, num_reqs, max_query_len, decode_query_len):
    if max_query_len != decode_query_len:
        return False
    return num_reqs * max_query_len == num_tokens


def dispatch(
    mode,
    sizes,
    max_num_reqs,
    num_tokens,
    uniform_decode=False,
    decode_query_len=1,
    disable_full=False,
):
    alone = (CUDAGraphMode.NONE, BatchDescriptor(num_tokens))
    if mode.name == "NONE" or not sizes or num_tokens > max(sizes):
        return alone
    size = next(size for size in sizes if num_tokens <= size)
    if not disable_full:
        if mode.name == "FULL":
            number = size if size < max_num_reqs else max_num_reqs
            return CUDAGraphMode.FULL, BatchDescriptor(num_tokens=size, num_reqs=number)
        decodes_only = mode.name.startswith("FULL_") and uniform_decode
        if decodes_only and size <= max_num_reqs * decode_query_len:
            descriptor = BatchDescriptor(size, size // decode_query_len, uniform=True)
            return CUDAGraphMode.FULL, descriptor
    if "PIECEWISE" in mode.name:
        return CUDAGraphMode.PIECEWISE, BatchDescriptor(size)
    return alone
