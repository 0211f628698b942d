"""Another right way: one token after the other finds its own word, in a flat tile."""

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
    begin = tl.program_id(1) * WORDS
    out_row = logits_ptr + tl.load(indices_ptr + row).to(tl.int64) * logits_stride
    bit = tl.arange(0, 32)
    for offset in range(WORDS):
        word = begin + offset
        bits = 0
        if word < num_words:
            bits = tl.load(bitmask_ptr + row * bitmask_stride + word)
        token = word * 32 + bit
        forbidden = (bits & (1 << bit)) == 0
        tl.store(out_row + token, float("-inf"), mask=forbidden & (token < vocab_size))
