"""Another right way: whole words first. A word of ones needs nothing, a word of zeros no bits."""

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
    n, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(indices_ptr + n).to(tl.int64)
    bit = tl.arange(0, 32)
    for i in range(WORDS):
        word = tile * WORDS + i
        if word * 32 < vocab_size:
            allowed = 0
            if word < num_words:
                allowed = tl.load(bitmask_ptr + n * bitmask_stride + word)
            if allowed != -1:
                token = word * 32 + bit
                closed = (((allowed >> bit) & 1) ^ 1).to(tl.int1)
                place = logits_ptr + row * logits_stride + token
                low = tl.zeros([32], tl.float32) - float("inf")
                tl.store(place, low, closed & (token < vocab_size))
