"""Another right way: unsigned words, the bits along the first axis, and an address for each row."""

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
    row = tl.program_id(0)
    tile = tl.program_id(1)
    place = tile * WORDS + tl.arange(0, WORDS)
    here = place < num_words
    words = tl.load(bitmask_ptr + row.to(tl.int64) * bitmask_stride + place, mask=here, other=0)
    words = words.to(tl.uint32, bitcast=True)
    shift = tl.arange(0, 32)
    allowed = (words[None, :] >> shift[:, None].to(tl.uint32)) % 2
    token = place[None, :] * 32 + shift[:, None]
    write = (token < vocab_size) & (allowed == 0)
    logits_row = logits_ptr + tl.load(indices_ptr + row).to(tl.int64) * logits_stride
    low = tl.full((32, WORDS), float("-inf"), tl.float32)
    tl.store(logits_row + token, low, mask=write)
