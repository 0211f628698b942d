"""Another right way: how often it was rejected so far, place by place, says what a place holds."""

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
    request = tl.cast(tl.program_id(0), tl.int64)
    end = tl.load(draft_ends_ptr + request)
    begin = end * 0
    if request > 0:
        begin = tl.load(draft_ends_ptr + request - 1)
    place = tl.arange(0, PLACES)
    there = place < end - begin
    number = begin.to(tl.int64) + place
    token = tl.load(draft_token_ids_ptr + number, mask=there, other=0)
    p = tl.load(target_probs_ptr + number * target_stride + token, mask=there, other=0.0)
    chance = tl.load(uniform_probs_ptr + number, mask=there, other=1.0)
    refused = tl.where(there, chance >= p, False)
    if not NO_DRAFT_PROBS:
        q = tl.load(draft_probs_ptr + number * draft_stride + token, mask=there, other=0.0)
        refused = tl.where(there, (chance * q.to(tl.float32) >= p) | (q <= 0), False)
    times = tl.cumsum(refused.to(tl.int32), 0)
    before = times - refused.to(tl.int32)
    instead = tl.load(recovered_token_ids_ptr + number, mask=refused & (before == 0), other=-1)
    bonus = tl.load(bonus_token_ids_ptr + request)
    is_bonus = (place == end - begin) & (before == 0)
    kept = tl.where(there & (times == 0), token, tl.where(is_bonus, bonus, -1))
    said = tl.where(refused & (before == 0), instead, kept)
    tl.store(output_ptr + request * (max_drafts + 1) + place, said, mask=place < max_drafts + 1)
