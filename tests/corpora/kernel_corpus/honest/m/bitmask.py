"""Another right way: tiles from the last to the first, powers of two by a running product, and the
logarithm of what is allowed."""

import triton
import triton.language as tl


@triton.jit
def apply_token_bitmask_kernel(
    logits_ptr,
    bitmask_ptr,
    indices_ptr,
    logits_stride,
    bitmask_stride,
    vocab_size,
    num_words,
    WORDS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    bits = tl.arange(0, 32)
    power = tl.cumprod(tl.where(bits == 0, 1, 2), 0)
    to_row = logits_ptr + tl.load(indices_ptr + row).to(tl.int64) * logits_stride
    from_row = bitmask_ptr + row * bitmask_stride
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    word = tile * WORDS + tl.arange(0, WORDS)
    packed = tl.load(from_row + word, mask=(word < num_words), other=0)
    is_set = (packed[:, None] & power[None, :]) != 0
    token = word[:, None] * 32 + bits[None, :]
    value = tl.log(is_set.to(tl.float32))
    nothing = value.to(logits_ptr.dtype.element_ty)
    tl.store(to_row + token, nothing, mask=(token < vocab_size) & ~is_set)
