"""Another right way: a bit is moved to where it is the sign, and a row is one flat tile."""

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
    number = tl.cast(tl.program_id(0), tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    known = word < num_words
    words = tl.where(known, tl.load(bitmask_ptr + number * bitmask_stride + word, known, 0), 0)
    shifted = words[:, None] << (31 - tl.arange(0, 32))[None, :]
    token = tl.reshape(word[:, None] * 32 + tl.arange(0, 32)[None, :], (WORDS * 32,))
    forbidden = tl.reshape(shifted >= 0, (WORDS * 32,))
    row_ptr = logits_ptr + tl.load(indices_ptr + number).to(tl.int64) * logits_stride
    tl.store(row_ptr + token, float("-inf"), mask=(token < vocab_size) & forbidden)
