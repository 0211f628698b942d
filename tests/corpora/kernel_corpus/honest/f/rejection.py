"""Another right way: the first rejection by `argmax`, and the tail by a place that never comes."""

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
    request = tl.program_id(0).to(tl.int64)
    start = tl.load(draft_ends_ptr + request - 1, request > 0, 0).to(tl.int64)
    count = tl.load(draft_ends_ptr + request).to(tl.int64) - start
    place = tl.arange(0, PLACES).to(tl.int64)
    own = place < count
    draft = tl.load(draft_token_ids_ptr + start + place, own, 0)
    p = tl.load(target_probs_ptr + (start + place) * target_stride + draft, own, 0.0)
    u = tl.load(uniform_probs_ptr + start + place, own, 0.0)
    q = tl.full([PLACES], 1.0, tl.float32)
    if not NO_DRAFT_PROBS:
        q = tl.load(draft_probs_ptr + (start + place) * draft_stride + draft, own, 1.0)
        q = q.to(tl.float32)
    kept = own & (q > 0.0) & (u * q < p.to(tl.float32))
    # `count` is at most PLACES - 1, so that there is always a place that is not kept.
    stop = tl.argmax((kept == 0).to(tl.int32), 0, tie_break_left=True)
    full = stop == count
    bonus = tl.load(bonus_token_ids_ptr + request, full, 0)
    recovered = tl.load(recovered_token_ids_ptr + start + stop, full == 0, 0)
    last = tl.where(full, bonus, recovered)
    token = tl.where(place > stop, -1, tl.where(place == stop, last, draft))
    tl.store(output_ptr + request * (max_drafts + 1) + place, token, place < max_drafts + 1)
