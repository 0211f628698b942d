"""Another right way: a loop over tiles of eight places, which remembers whether it goes on."""

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
    STEP: tl.constexpr = 8 if PLACES > 8 else PLACES
    request = tl.program_id(0).to(tl.int64)
    begin = tl.load(draft_ends_ptr + request - 1, mask=request > 0, other=0)
    count = tl.load(draft_ends_ptr + request) - begin
    alive = 1
    for first in range(0, max_drafts + 1, STEP):
        place = first + tl.arange(0, STEP)
        is_draft = (place < count) & (alive > 0)
        row = begin.to(tl.int64) + place
        token = tl.load(draft_token_ids_ptr + row, mask=is_draft, other=0)
        p = tl.load(target_probs_ptr + row * target_stride + token, mask=is_draft, other=1.0)
        u = tl.load(uniform_probs_ptr + row, mask=is_draft, other=0.0)
        if NO_DRAFT_PROBS:
            good = p.to(tl.float32) > u
        else:
            q = tl.load(draft_probs_ptr + row * draft_stride + token, mask=is_draft, other=1.0)
            good = (q.to(tl.float32) > 0.0) & (p.to(tl.float32) > u * q.to(tl.float32))
        ends = (place < count) & (good == 0)
        end = tl.min(tl.where(ends, place, count), axis=0)
        instead = tl.load(recovered_token_ids_ptr + row, mask=is_draft & (place == end), other=-1)
        bonus = tl.load(
            bonus_token_ids_ptr + request + place * 0,
            mask=(place == count) & (end == count),
            other=-1,
        )
        last = tl.where(place < count, instead, bonus)
        said = tl.where(place < end, token, tl.where(place == end, last, -1))
        said = tl.where(alive > 0, said, -1)
        tl.store(output_ptr + request * (max_drafts + 1) + place, said, mask=place <= max_drafts)
        alive = tl.where(end < tl.minimum(count, first + STEP), 0, alive)
