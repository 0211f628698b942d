"""Another right way: one draft after the other, until one is rejected; the rest is filled in."""

import triton
import triton.language as tl


@triton.jit
def is_accepted(p, q, u):
    """Whether a draft stays, from three numbers."""
    return (q > 0.0) and (u * q < p)


@triton.jit
def rejection_random_sample_kernel(
    output_ptr,
    draft_ends_ptr,
    draft_token_ids_ptr,
    draft_probs_ptr,
    target_probs_ptr,
    bonus_token_ids_ptr,
    recovered_token_ids_ptr,
    uniform_probs_ptr,
    draft_stride,
    target_stride,
    max_drafts,
    NO_DRAFT_PROBS: tl.constexpr,
    PLACES: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    end = tl.load(draft_ends_ptr + request).to(tl.int64)
    draft = tl.load(draft_ends_ptr + request - 1, mask=request > 0, other=0).to(tl.int64)
    place = request * (max_drafts + 1)
    after = place + max_drafts + 1
    going_on = True
    while going_on and draft < end:
        token = tl.load(draft_token_ids_ptr + draft)
        p = tl.load(target_probs_ptr + draft * target_stride + token).to(tl.float32)
        u = tl.load(uniform_probs_ptr + draft)
        if NO_DRAFT_PROBS:
            going_on = u < p
        else:
            q = tl.load(draft_probs_ptr + draft * draft_stride + token).to(tl.float32)
            going_on = is_accepted(p, q, u)
        if not going_on:
            token = tl.load(recovered_token_ids_ptr + draft)
        tl.store(output_ptr + place, token)
        place += 1
        draft += 1
    if going_on:
        tl.store(output_ptr + place, tl.load(bonus_token_ids_ptr + request))
        place += 1
    while place < after:
        tl.store(output_ptr + place, -1)
        place += 1
