"""Another right way: a running product says what is kept, and each place finds its own token."""

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
    before = tl.maximum(request - 1, 0)
    start = tl.where(request > 0, tl.load(draft_ends_ptr + before), 0).to(tl.int64)
    count = tl.load(draft_ends_ptr + request) - start
    place = tl.arange(0, PLACES)
    inside = place < count
    draft = tl.load(draft_token_ids_ptr + start + place, mask=inside, other=-1)
    safe = tl.where(inside, draft, 0)
    p = tl.load(target_probs_ptr + (start + place) * target_stride + safe, mask=inside, other=0.0)
    q = tl.full((PLACES,), 1.0, tl.float32)
    if not NO_DRAFT_PROBS:
        address = draft_probs_ptr + (start + place) * draft_stride + safe
        q = tl.load(address, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(uniform_probs_ptr + start + place, mask=inside, other=1.0)
    wrong = ((q <= 0.0) | (u * q >= p.to(tl.float32))) & inside
    wrong_so_far = tl.cumsum(wrong.to(tl.int32), axis=0)
    last = wrong & (wrong_so_far == 1)
    recovered = tl.load(recovered_token_ids_ptr + start + place, mask=last, other=-1)
    bonus = tl.load(bonus_token_ids_ptr + request)
    nothing_wrong = tl.sum(wrong.to(tl.int32), axis=0) == 0
    token = tl.where(wrong_so_far == 0, draft, -1)
    token = tl.where(last, recovered, token)
    token = tl.where((place == count) & nothing_wrong, bonus, token)
    out = output_ptr + request.to(tl.int64) * (max_drafts + 1)
    tl.store(out + place, token, mask=place < max_drafts + 1)
