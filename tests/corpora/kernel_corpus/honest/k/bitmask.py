"""Another right way: bytes of a word, then bits of a byte: a tile with three axes."""

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
    n = tl.program_id(0).to(tl.int64)
    target = tl.load(indices_ptr + n)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    bits = tl.load(bitmask_ptr + n * bitmask_stride + word, mask=word < num_words, other=0)
    byte = (bits[:, None] >> (8 * tl.arange(0, 4))[None, :]) & 255
    flag = (byte[:, :, None] // (1 << tl.arange(0, 8))[None, None, :]) % 2
    token = 32 * word[:, None, None] + 8 * tl.arange(0, 4)[None, :, None]
    token = token + tl.arange(0, 8)[None, None, :]
    row = logits_ptr + target.to(tl.int64) * logits_stride
    nothing = tl.zeros_like(flag).to(tl.float32) + float("-inf")
    tl.store(row + token, nothing, mask=(token < vocab_size) & (flag == 0))
