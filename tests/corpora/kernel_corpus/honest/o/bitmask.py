"""Another right way: bit by bit of unsigned words, so that a tile is never wider than its words."""

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
    logits_ptr += tl.load(indices_ptr + row).to(tl.int64) * logits_stride
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    allowed = tl.load(bitmask_ptr + row * bitmask_stride + word, mask=word < num_words, other=0).to(
        tl.uint32, bitcast=True
    )
    for bit in tl.static_range(32):
        token = word * 32 + bit
        is_allowed = (allowed & 1) != 0
        allowed = allowed >> 1
        tl.store(logits_ptr + token, float("-inf"), mask=(token < vocab_size) & ~is_allowed)
