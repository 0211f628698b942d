"""How the kernel of `kernels/rejection.py` is launched, and the least work it can do."""

from __future__ import annotations

from torch import Tensor

from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes

MODULE = "mini_vllm.kernels.rejection"


def plan_rejection_random_sample(
    output: Tensor,
    draft_ends: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    bonus_token_ids: Tensor,
    recovered_token_ids: Tensor,
    uniform_probs: Tensor,
) -> list[Launch]:
    """`output` `[B, K + 1]` int64; `draft_ends` `[B]` int32, the running sum of the numbers of
    drafts; the probabilities `[N, V]` with free row strides. All else is contiguous."""
    max_drafts = output.shape[1] - 1
    q = target_probs if draft_probs is None else draft_probs
    launch = Launch(
        "rejection_random_sample_kernel",
        grid=(len(output),),
        args={
            "output_ptr": output,
            "draft_ends_ptr": draft_ends,
            "draft_token_ids_ptr": draft_token_ids,
            "draft_probs_ptr": q,
            "target_probs_ptr": target_probs,
            "bonus_token_ids_ptr": bonus_token_ids,
            "recovered_token_ids_ptr": recovered_token_ids,
            "uniform_probs_ptr": uniform_probs,
            "draft_stride": q.stride(0),
            "target_stride": target_probs.stride(0),
            "max_drafts": max_drafts,
        },
        constexprs={
            "NO_DRAFT_PROBS": draft_probs is None,
            "PLACES": next_power_of_2(max_drafts + 1),
        },
        num_warps=1,
    )
    return [launch]


def work_rejection_random_sample(
    output: Tensor,
    draft_ends: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    bonus_token_ids: Tensor,
    recovered_token_ids: Tensor,
    uniform_probs: Tensor,
) -> Work:
    """Of each draft its id, its u, one p and one q; of each request where its drafts end, and one
    more token."""
    num_drafts = len(draft_token_ids)
    probs = target_probs.itemsize + (0 if draft_probs is None else draft_probs.itemsize)
    read = tensor_bytes(draft_ends, draft_token_ids, uniform_probs, bonus_token_ids)
    return Work(read + num_drafts * probs, tensor_bytes(output), flops=0)


REJECTION_RANDOM_SAMPLE = KernelSpec(
    name="rejection_random_sample",
    module=MODULE,
    kernels=("rejection_random_sample_kernel",),
    plan=plan_rejection_random_sample,
    work=work_rejection_random_sample,
    outputs=("output",),
)

SPECS = (REJECTION_RANDOM_SAMPLE,)
