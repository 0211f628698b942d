"""Another right way: probabilities by their logarithms in double precision, and a running sum of
rejections."""

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
    begin = tl.load(draft_ends_ptr + request - 1, mask=request > 0, other=0).to(tl.int64)
    count = tl.load(draft_ends_ptr + request) - begin.to(tl.int32)
    place = tl.arange(0, PLACES)
    has = place < count
    draft = begin + place
    token = tl.load(draft_token_ids_ptr + draft, mask=has, other=0)
    target = tl.load(target_probs_ptr + draft * target_stride + token, mask=has, other=0.0)
    chance = tl.log(target.to(tl.float64))
    if not NO_DRAFT_PROBS:
        own = tl.load(draft_probs_ptr + draft * draft_stride + token, mask=has, other=0.0)
        chance = tl.where(own > 0.0, chance - tl.log(own.to(tl.float64)), float("-inf"))
    uniform = tl.log(tl.load(uniform_probs_ptr + draft, mask=has, other=1.0).to(tl.float64))
    rejected = has & ~(uniform < chance)
    before = tl.cumsum(rejected.to(tl.int32), 0) - rejected.to(tl.int32)
    kept = has & (before == 0) & ~rejected
    length = tl.sum(kept.to(tl.int32), 0)
    instead = tl.load(recovered_token_ids_ptr + draft, mask=rejected & (before == 0), other=-1)
    bonus = tl.load(bonus_token_ids_ptr + request)
    row = tl.where(kept, token, instead)
    row = tl.where((place == length) & (length == count), bonus, row)
    at = output_ptr + request * (max_drafts + 1) + place
    tl.store(at, row, mask=place < max_drafts + 1)
