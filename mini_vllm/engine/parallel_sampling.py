"""n > 1: one prompt, several completions. Each is a request of its own.

        "r7", n=3, seed=5   ->   "0_r7" seed=5     "1_r7" seed=6     "2_r7" seed=7

The scheduler sees ordinary requests. The children share the blocks of their common prompt only
because the prefix cache finds the same hashes.

Source: vllm/v1/engine/parallel_sampling.py#L13-L126 (ParentRequest) @ v0.22.1.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from mini_vllm.pooling_params import PoolingParams
from mini_vllm.sampling_params import SamplingParams

KV_TRANSFER_PARAMS = "kv_transfer_params"


def child_requests(
    request_id: str, params: SamplingParams | PoolingParams
) -> Iterator[tuple[str, SamplingParams | PoolingParams]]:
    """Id and parameters of each completion's request: n is 1, and the seed is its own.

    A request with n = 1 is its own and only child.
    """
    if params.n == 1:
        yield request_id, params
        return
    assert isinstance(params, SamplingParams), "a prompt is pooled once"
    params = params.clone()
    params.check_changes()  # once for all of them
    for index in range(params.n):
        child = copy.copy(params)
        child.n = 1
        if index and child.extra_args:  # one of them fetches, or is held, for all
            child.extra_args = {
                key: value for key, value in child.extra_args.items() if key != KV_TRANSFER_PARAMS
            }
        if child.seed is not None:
            child.seed += index
            if child.seed >= 2**64:
                child.seed -= 2**64  # the same 64 bits
        yield f"{index}_{request_id}", child
