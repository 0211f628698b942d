"""A lane is a word; its 32 tokens one after the other."""

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
    row = tl.load(indices_ptr + n).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    bits = tl.load(bitmask_ptr + n * bitmask_stride + word, mask=word < num_words, other=0)
    for part in tl.static_range(0, 32):
        token = word * 32 + part
        allowed = ((bits >> part) & 1) != 0
        tl.store(
            logits_ptr + row * logits_stride + token,
            tl.full([WORDS], float("-inf"), logits_ptr.dtype.element_ty),
            mask=(token < vocab_size) & (allowed == 0),
        )
