"""One stage of a pipeline: take over from the stage before, hand on to the next.

Every stage can say from the plan how many tokens come, and it knows the model's width; so
only the tensors themselves travel.

Source: vllm/v1/worker/gpu_worker.py#L781-L866 (Worker.execute_model) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mini_vllm.distributed.parallel_state import GroupCoordinator
from mini_vllm.model.interface import IntermediateTensors


class PipelineStage:
    """The runner's slot for a stage.

    Args:
        group: the stages, first to last.
        hidden_size, dtype, device: of the activations.
    """

    def __init__(
        self, group: GroupCoordinator, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.group = group
        self.hidden_size, self.dtype, self.device = hidden_size, dtype, device
        self._leaving: list[tuple[Any, Tensor]] = []
        """Tensors on their way, which must not change, and what to wait for."""

    def receive(self, num_tokens: int) -> dict[str, IntermediateTensors]:
        """What the model is called with besides its inputs: at the first stage, nothing.

        At any other ``{"intermediate": IntermediateTensors(...)}``, two ``[num_tokens, H]`` that
        the stage before sends: the hidden states, then the residual.
        """
        if self.group.is_first_rank:
            return {}
        shape, previous = (num_tokens, self.hidden_size), self.group.rank_in_group - 1
        hidden, residual = (
            torch.empty(shape, dtype=self.dtype, device=self.device) for _ in range(2)
        )
        coming = [self.group.irecv(tensor, previous) for tensor in (hidden, residual)]
        for each in coming:
            each.wait()
        return {"intermediate": IntermediateTensors(hidden, residual)}

    def hand_on(self, result: Tensor | IntermediateTensors) -> Tensor | None:
        """Hidden states ``[T, H]`` of the last stage; what another returns goes to the next one.

        It does not wait until that is ready for it. But before it sends, it waits until the tensors
        of the last call have left. These are kept until then, contiguous, with what to wait for
        (``self._leaving``).

        Returns:
            A tensor as it came: it is the last stage's. Else None.
        """
        if isinstance(result, Tensor):
            return result
        for sending, _ in self._leaving:
            sending.wait()
        following = self.group.rank_in_group + 1
        tensors = [t.contiguous() for t in (result.hidden_states, result.residual)]
        self._leaving = [(self.group.isend(tensor, following), tensor) for tensor in tensors]
        return None


def missing_tokens(num_known: int, num_computed: int, new_token_ids: Sequence[int]) -> list[int]:
    """The tokens that a rank which does not sample lacks, of those that its plan brings.

    ::

        known     a b c d e            5 tokens, of which the first 3 are computed
        plan            d e f          from the first that is not computed
        missing             f

    A plan repeats what is known already: chunks of a prompt bring prompt tokens.

    Args:
        num_known: tokens of the request that are here, its prompt included.
        num_computed: tokens before those of this step.
        new_token_ids: the tokens that this step computes, in a list that stays the plan's.

    Source: vllm/v1/worker/gpu_model_runner.py#L1337-L1346 (GPUModelRunner._update_states) @ v0.22.1
    """
    return list(new_token_ids[max(num_known - num_computed, 0) :])
