"""From draft to draft, as upstream does it."""

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
    b = tl.program_id(0)
    begin = tl.load(draft_ends_ptr + b - 1, mask=b > 0, other=0)
    end = tl.load(draft_ends_ptr + b)
    out = output_ptr + b * (max_drafts + 1)
    rejected = False
    for j in range(0, max_drafts + 1):
        i = (begin + j).to(tl.int64)
        token = tl.full([], -1, tl.int64)
        if not rejected:
            if i < end:
                draft = tl.load(draft_token_ids_ptr + i)
                p = tl.load(target_probs_ptr + i * target_stride + draft).to(tl.float32)
                u = tl.load(uniform_probs_ptr + i)
                if NO_DRAFT_PROBS:
                    q = tl.full([], 1.0, tl.float32)
                else:
                    q = tl.load(draft_probs_ptr + i * draft_stride + draft).to(tl.float32)
                if (q > 0.0) & (p > u * q):
                    token = draft
                else:
                    token = tl.load(recovered_token_ids_ptr + i)
                    rejected = True
            else:
                token = tl.load(bonus_token_ids_ptr + b)
                rejected = True
        tl.store(out + j, token)
