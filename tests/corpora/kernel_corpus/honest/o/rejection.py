"""Another right way: place by place until one is refused, with nothing but numbers; what is left of
the row is written at once."""

import triton
import triton.language as tl


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
    request = tl.program_id(0)
    end = tl.load(draft_ends_ptr + request)
    row = tl.load(draft_ends_ptr + request - 1, mask=request > 0, other=0)
    count = end - row
    taken = 0
    token = tl.load(bonus_token_ids_ptr + request)
    row_ptr = output_ptr + request.to(tl.int64) * (max_drafts + 1)
    refused = False
    while (taken < count) & (refused == 0):
        at = (row + taken).to(tl.int64)
        draft = tl.load(draft_token_ids_ptr + at)
        bound = tl.load(uniform_probs_ptr + at)
        alive = bound >= 0.0
        if not NO_DRAFT_PROBS:
            q = tl.load(draft_probs_ptr + at * draft_stride + draft).to(tl.float32)
            bound = bound * q
            alive = q > 0.0
        p = tl.load(target_probs_ptr + at * target_stride + draft).to(tl.float32)
        refused = (alive & (bound < p)) == 0
        if refused:
            token = tl.load(recovered_token_ids_ptr + at)
        else:
            tl.store(row_ptr + taken, draft)
            taken += 1
    place = tl.arange(0, PLACES)
    rest = tl.where(place == taken, token, -1)
    tl.store(row_ptr + place, rest, mask=(place >= taken) & (place <= max_drafts))
