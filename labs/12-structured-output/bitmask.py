"""The kernel that forbids tokens: -inf wherever a packed bit is 0."""

import triton
import triton.language as tl


@triton.jit
def apply_token_bitmask_kernel(
    logits_ptr,  # [B, V], in place
    bitmask_ptr,  # [R, W] int32: bit t % 32 of word t // 32 is token t
    indices_ptr,  # [N] int32: program row n is row indices[n] of the logits and n of the bitmask
    logits_stride,
    bitmask_stride,
    vocab_size,
    num_words,
    WORDS: tl.constexpr,
):
    """Write -inf to the forbidden tokens of one tile of one row. Grid: (N, tiles of 32 WORDS).

    Row n of the bitmask belongs to row indices[n] of the logits. One tile is WORDS words, spread
    to `[WORDS, 32]` logits: token t of the tile is bit t % 32 of word t // 32. Tokens behind the
    last word are forbidden, as if their words were 0.

    Nothing but forbidden logits is written, and no logit is read: what is -inf or NaN elsewhere
    stays, and the traffic is a bit a token plus what is forbidden. A word is signed, and shifting
    a negative one keeps its sign: take the bit with `& 1` after the shift.

    Source: xgrammar's apply_token_bitmask_inplace_kernel, which vLLM calls in
    vllm/v1/structured_output/utils.py#L44-L135 (apply_grammar_bitmask) @ v0.22.1.
    """
    # TODO 12.11
    tl.static_assert(
        False,
        "TODO 12.11: write apply_token_bitmask_kernel in labs/12-structured-output/bitmask.py"
        " (phase 12, 02-mini-build.md#task-11)",
    )
