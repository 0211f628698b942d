"""Another right way: upstream's loop, which stops judging at the first rejection."""

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
    start = 0 if request == 0 else tl.load(draft_ends_ptr + request - 1)
    end = tl.load(draft_ends_ptr + request)
    here = output_ptr + request * (max_drafts + 1)
    rejected = False
    for place in range(end - start):
        token = -1
        if not rejected:
            row = (start + place).to(tl.int64)
            draft = tl.load(draft_token_ids_ptr + row)
            if NO_DRAFT_PROBS:
                q = 1.0
            else:
                q = tl.load(draft_probs_ptr + row * draft_stride + draft).to(tl.float32)
            p = tl.load(target_probs_ptr + row * target_stride + draft).to(tl.float32)
            u = tl.load(uniform_probs_ptr + row)
            if q > 0 and u * q < p:
                token = draft.to(tl.int32)
            else:
                rejected = True
                token = tl.load(recovered_token_ids_ptr + row).to(tl.int32)
        tl.store(here + place, token)
    token = -1
    if not rejected:
        token = tl.load(bonus_token_ids_ptr + request).to(tl.int32)
    tl.store(here + (end - start), token)
    for place in range(end - start + 1, max_drafts + 1):
        tl.store(here + place, -1)
