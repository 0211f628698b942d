"""n > 1: one prompt, several completions. Each is a request of its own.

        "r7", n=3, seed=5   ->   "0_r7" seed=5     "1_r7" seed=6     "2_r7" seed=7

The scheduler knows nothing of this. The children share the blocks of their common prompt only
because the prefix cache finds the same hashes.

Source: vllm/v1/engine/parallel_sampling.py#L13-L126 (ParentRequest) @ v0.22.1.
"""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

from mini_vllm.sampling_params import SamplingParams

Completion = TypeVar("Completion")


class ParentRequest(Generic[Completion]):
    """Makes the children of a request with n > 1 and collects what they return.

    Args:
        request_id: id of the request as the caller knows it.
        sampling_params: the caller's parameters, with n children to make.
    """

    def __init__(self, request_id: str, sampling_params: SamplingParams) -> None:
        self.request_id = request_id
        self.sampling_params = sampling_params
        self._completions: dict[int, Completion] = {}

    @property
    def n(self) -> int:
        """How many children there are."""
        return self.sampling_params.n

    def get_child_info(self, index: int) -> tuple[str, SamplingParams]:
        """Id and parameters of child `index`, counted from 0: n is 1, and the seed is its own."""
        params = copy.copy(self.sampling_params)
        params.n = 1
        if params.seed is not None:
            params.seed += index
        return f"{index}_{self.request_id}", params

    def add_completion(self, index: int, completion: Completion) -> list[Completion] | None:
        """Note that child `index` is done. Returns all completions in order after the last one."""
        self._completions[index] = completion
        if len(self._completions) < self.n:
            return None
        return [self._completions[child] for child in range(self.n)]
