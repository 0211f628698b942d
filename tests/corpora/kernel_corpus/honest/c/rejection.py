"""Another right way: three stores: what is kept, the places behind the end, and the last token."""

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
    first = 0
    if request > 0:
        first = tl.load(draft_ends_ptr + request - 1)
    behind = tl.load(draft_ends_ptr + request)
    lane = tl.arange(0, PLACES)
    row = first.to(tl.int64) + lane
    used = row < behind
    out = output_ptr + request * (max_drafts + 1)
    draft = tl.load(draft_token_ids_ptr + row, mask=used, other=0)
    p = tl.load(target_probs_ptr + row * target_stride + draft, mask=used, other=0.0)
    p = p.to(tl.float32)
    u = tl.load(uniform_probs_ptr + row, mask=used, other=0.0)
    if NO_DRAFT_PROBS:
        bad = used & (u >= p)
    else:
        q = tl.load(draft_probs_ptr + row * draft_stride + draft, mask=used, other=0.0)
        q = q.to(tl.float32)
        bad = used & ((q == 0.0) | (u * q >= p))
    kept = tl.min(tl.where(bad, lane, PLACES), axis=0)
    tl.store(out + lane, draft, mask=used & (lane < kept))
    count = behind - first
    last = tl.minimum(kept, count)
    tl.store(
        out + lane, tl.full((PLACES,), -1, tl.int64), mask=(lane > last) & (lane <= max_drafts)
    )
    if kept < count:
        tl.store(out + kept, tl.load(recovered_token_ids_ptr + first + kept))
    else:
        tl.store(out + count, tl.load(bonus_token_ids_ptr + request))
