"""Another right way: neighbours are joined to how many are accepted from the left, and whether all
of them are.
"""

import triton
import triton.language as tl


@triton.jit
def behind(accepted, size, other_accepted, other_size):
    """A run of places and the one behind it, as one."""
    return accepted + tl.where(accepted == size, other_accepted, 0), size + other_size


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
    begin = tl.load(draft_ends_ptr + request - 1, mask=request > 0, other=0)
    end = tl.load(draft_ends_ptr + request)
    place = tl.arange(0, PLACES)
    row = (begin + place).to(tl.int64)
    mine = row < end
    draft = tl.load(draft_token_ids_ptr + row, mask=mine, other=0)
    p = tl.load(target_probs_ptr + row * target_stride + draft, mask=mine, other=0.0)
    u = tl.load(uniform_probs_ptr + row, mask=mine, other=1.0)
    if NO_DRAFT_PROBS:
        stays = p > u
    else:
        q = tl.load(draft_probs_ptr + row * draft_stride + draft, mask=mine, other=0.0)
        stays = (q > 0) & (p > q * u)
    one = tl.full([PLACES], 1, tl.int32)
    kept, _ = tl.reduce(((stays & mine).to(tl.int32), one), 0, behind)
    rejected = begin + kept < end
    bonus = tl.load(bonus_token_ids_ptr + request, mask=rejected == 0, other=0)
    recovered = tl.load(recovered_token_ids_ptr + begin + kept, mask=rejected, other=0)
    last = tl.where(rejected, recovered, bonus)
    token = tl.where(place == kept, last, tl.where(place < kept, draft, -1))
    tl.store(output_ptr + request * (max_drafts + 1) + place, token, mask=place <= max_drafts)
