"""The kernel that judges drafts: up to the first rejection, one program a request."""

import triton
import triton.language as tl


@triton.jit
def rejection_random_sample_kernel(
    output_ptr,  # [B, K + 1] int64
    draft_ends_ptr,  # [B] int32: drafts ends[b - 1] ... ends[b] - 1 of the N are request b's
    draft_token_ids_ptr,  # [N] int64
    draft_probs_ptr,  # [N, V], q; not read if NO_DRAFT_PROBS
    target_probs_ptr,  # [N, V], p
    bonus_token_ids_ptr,  # [B] int64
    recovered_token_ids_ptr,  # [N] int64
    uniform_probs_ptr,  # [N] float32, u
    draft_stride,
    target_stride,
    max_drafts,
    NO_DRAFT_PROBS: tl.constexpr,
    PLACES: tl.constexpr,
):
    """Write the K + 1 places of one request's output. Grid: (B,).

    Draft j is accepted if q > 0 and u * q < p, with p and q of the draft's own token; without
    draft_probs q is 1. The output begins with the drafts before the first rejection; then comes
    the recovered token of the rejected one, or the bonus token if nothing was rejected. All places
    behind it are -1, up to max_drafts = K. A request may have no drafts: it gets its bonus.

    PLACES is a power of two, at least K + 1: a tile holds the whole row. Of each row of p and q
    one number is read. The rows lie anywhere: their addresses take 64 bits.

    Source: vllm/v1/sample/rejection_sampler.py#L760-L829 (rejection_random_sample_kernel)
    @ v0.22.1, which goes from draft to draft in a loop.
    """
    request = tl.program_id(0)
    start = 0 if request == 0 else tl.load(draft_ends_ptr + request - 1)
    count = tl.load(draft_ends_ptr + request) - start
    place = tl.arange(0, PLACES)
    is_draft = place < count
    row = (start + place).to(tl.int64)
    draft = tl.load(draft_token_ids_ptr + row, mask=is_draft)
    p = tl.load(target_probs_ptr + row * target_stride + draft, mask=is_draft)
    u = tl.load(uniform_probs_ptr + row, mask=is_draft)
    if NO_DRAFT_PROBS:
        accepted = u < p
    else:
        q = tl.load(draft_probs_ptr + row * draft_stride + draft, mask=is_draft)
        accepted = (q > 0) & (u * q < p)
    # The first place that is not accepted. Those behind the drafts cannot come before `count`.
    num_accepted = tl.min(tl.where(accepted, count, place), axis=0)
    if num_accepted < count:
        last = tl.load(recovered_token_ids_ptr + start + num_accepted)
    else:
        last = tl.load(bonus_token_ids_ptr + request)
    token = tl.where(place < num_accepted, draft, tl.where(place == num_accepted, last, -1))
    tl.store(output_ptr + request * (max_drafts + 1) + place, token, mask=place <= max_drafts)
