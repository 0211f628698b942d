"""Another right way: a loop over the words of a tile, each held against a table of bits."""

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
    target = tl.load(indices_ptr + row).to(tl.int64)
    lane = tl.arange(0, 32)
    begin = tl.program_id(1) * WORDS
    for word in range(begin, tl.minimum(begin + WORDS, tl.cdiv(vocab_size, 32))):
        bits = 0
        if word < num_words:
            bits = tl.load(bitmask_ptr + row * bitmask_stride + word)
        token = word * 32 + lane
        allowed = (bits & (1 << lane)) != 0
        keep = (allowed == 0) & (token < vocab_size)
        minus_infinity = tl.zeros([32], tl.float32) - float("inf")
        tl.store(logits_ptr + target * logits_stride + token, minus_infinity, mask=keep)
