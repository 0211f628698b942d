"""Another right way: one flat tile of tokens, to which each word is spread before it is asked."""

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
    TOKENS: tl.constexpr = WORDS * 32
    mask_row = tl.program_id(0).to(tl.int64)
    first_word = tl.program_id(1).to(tl.int64) * WORDS
    word = first_word + tl.arange(0, WORDS)
    packed = tl.load(bitmask_ptr + mask_row * bitmask_stride + word, mask=word < num_words)
    packed = tl.where(word < num_words, packed, 0).to(tl.uint32, bitcast=True)
    spread = tl.reshape(tl.broadcast_to(packed[:, None], (WORDS, 32)), (TOKENS,))
    place = tl.arange(0, TOKENS)
    is_allowed = (spread & (1 << (place % 32)).to(tl.uint32)) != 0
    token = first_word * 32 + place
    row = tl.load(indices_ptr + mask_row).to(tl.int64)
    at = logits_ptr + (row * logits_stride + token)
    nothing = tl.full((TOKENS,), float("-inf"), logits_ptr.dtype.element_ty)
    tl.store(at, nothing, mask=(token < vocab_size) & ~is_allowed)
