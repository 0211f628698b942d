"""Another right way: a scan with a function of one's own says how far all were accepted."""

import triton
import triton.language as tl


@triton.jit
def both(a, b):
    return a & b


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
    begin = tl.where(request > 0, tl.load(draft_ends_ptr + tl.maximum(request - 1, 0)), 0)
    count = tl.load(draft_ends_ptr + request) - begin
    place = tl.arange(0, PLACES)
    row = begin.to(tl.int64) + place
    mine = place < count
    token = tl.load(draft_token_ids_ptr + row, mask=mine, other=0)
    chance = tl.load(target_probs_ptr + row * target_stride + token, mask=mine, other=0.0)
    chance = chance.to(tl.float32)
    dice = tl.load(uniform_probs_ptr + row, mask=mine, other=1.0)
    if not NO_DRAFT_PROBS:
        q = tl.load(draft_probs_ptr + row * draft_stride + token, mask=mine, other=0.0)
        dice = tl.where(q > 0, dice * q.to(tl.float32), float("inf"))
    passed = tl.associative_scan((mine & (dice < chance)).to(tl.int32), 0, both)
    length = tl.sum(passed, axis=0)
    instead_ptr = recovered_token_ids_ptr + begin + length
    end_ptr = tl.where(length < count, instead_ptr, bonus_token_ids_ptr + request)
    last = tl.load(end_ptr)
    said = tl.where(passed == 1, token, -1)
    said = tl.where(place == length, last, said)
    output_ptr += request * (max_drafts + 1)
    tl.store(output_ptr + place, said, mask=place < max_drafts + 1)
