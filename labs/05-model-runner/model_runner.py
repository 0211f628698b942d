"""The model runner's bookkeeping: a scheduler's plan becomes the tensors of one forward pass.

::

    SchedulerOutput ─► update rows ─► flatten ─► model ─► rows to sample ─► sampler ─► token ids
                       (InputBatch)   T tokens   [T, H]   [B, H] → [B, V]              {id: [t]}
                       └──────── here ────────┘  └──────────── runner_frame.py ────────────────┘

Source: vllm/v1/worker/gpu_model_runner.py#L3954-L4317 (GPUModelRunner.execute_model) @ v0.22.1
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.attention import AttentionMetadata
from mini_vllm.core.scheduler_output import NewRequestData, SchedulerOutput
from mini_vllm.worker.input_batch import (
    CachedRequestState,
    FlatBatch,
    decodes_first,
    flatten_tokens,
    rows_to_sample,
)
from mini_vllm.worker.runner_frame import RunnerFrame
from mini_vllm.worker.step_inputs import StepInputs


class ModelRunner(RunnerFrame):
    """Keeps the batch in step with the scheduler, and flattens it; the frame does the rest."""

    def _update_states(self, output: SchedulerOutput) -> None:
        """Bring the batch's rows in line with the plan: first remove requests, then add requests.

        Removed requests make room for new ones: rows are as many as requests may run at once. Holes
        that are left at the end are closed.

        Source: vllm/v1/worker/gpu_model_runner.py#L1116-L1484 (GPUModelRunner._update_states)
        @ v0.22.1
        """
        # TODO 05.5
        raise NotImplementedError(
            "TODO 05.5: write ModelRunner._update_states in labs/05-model-runner/model_runner.py"
            " (phase 05, 02-mini-build.md#task-5)"
        )

    def _remove_requests(self, output: SchedulerOutput) -> None:
        """Finished and preempted requests leave their rows.

        A finished one is forgotten, for its id may come back as another request. A preempted one
        is remembered: the plan that resumes it does not repeat its prompt and output.

        Source: vllm/v1/worker/gpu_model_runner.py#L1126-L1171 (GPUModelRunner._update_states)
        @ v0.22.1
        """
        # TODO 05.5
        raise NotImplementedError(
            "TODO 05.5: write ModelRunner._remove_requests in labs/05-model-runner/model_runner.py"
            " (phase 05, 02-mini-build.md#task-5)"
        )

    def _add_new_request(self, new: NewRequestData) -> None:
        """Remember a request that the plan describes in full, and give it a row.

        Source: vllm/v1/worker/gpu_model_runner.py#L1183-L1248 (GPUModelRunner._update_states)
        @ v0.22.1
        """
        # TODO 05.5
        raise NotImplementedError(
            "TODO 05.5: write ModelRunner._add_new_request in labs/05-model-runner/model_runner.py"
            " (phase 05, 02-mini-build.md#task-5)"
        )

    def _update_cached_requests(self, output: SchedulerOutput) -> None:
        """Requests that are known already: a resumed one gets a row, a running one its changes.

        ``output.new_block_ids`` holds the whole table of a resumed request and only the additional
        blocks of a running one; a request that got no block is absent. The count of computed
        tokens is the plan's, for both.

        Source: vllm/v1/worker/gpu_model_runner.py#L1359-L1392 (GPUModelRunner._update_states)
        @ v0.22.1
        """
        # TODO 05.5
        raise NotImplementedError(
            "TODO 05.5: write ModelRunner._update_cached_requests in labs/05-model-runner/model_runner.py"
            " (phase 05, 02-mini-build.md#task-5)"
        )

    def _prepare_inputs(self, output: SchedulerOutput) -> StepInputs:
        """The tensors of one forward pass over R requests with T tokens.

        The scheduled tokens of all requests lie end to end in the order of
        :meth:`_order_requests`; each is looked up by row and position in the batch's arrays,
        of which whole rows are not copied.

        Source: vllm/v1/worker/gpu_model_runner.py#L1863-L2181 (GPUModelRunner._prepare_inputs)
        @ v0.22.1
        """
        # TODO 05.6
        raise NotImplementedError(
            "TODO 05.6: write ModelRunner._prepare_inputs in labs/05-model-runner/model_runner.py"
            " (phase 05, 02-mini-build.md#task-6)"
        )

    def _order_requests(
        self, output: SchedulerOutput
    ) -> tuple[list[str], NDArray[np.int64], NDArray[np.int32]]:
        """The scheduled requests, decodes first and otherwise in the scheduler's order.

        Returns:
            Their ids, their rows in the batch ``[R]`` int64, and their tokens in this step ``[R]``
            int32.
        """
        # TODO 05.6
        raise NotImplementedError(
            "TODO 05.6: write ModelRunner._order_requests in labs/05-model-runner/model_runner.py"
            " (phase 05, 02-mini-build.md#task-6)"
        )

    def _attention_metadata(
        self,
        rows: NDArray[np.int64],
        flat: FlatBatch,
        num_scheduled: NDArray[np.int32],
        seq_lens: NDArray[np.int32],
    ) -> AttentionMetadata:
        """The flat batch's metadata for attention, on the device.

        Args:
            rows: ``[R]``, the batch row of each request.
            flat: T tokens of R requests.
            num_scheduled, seq_lens: ``[R]``, tokens in this step and computed after it.

        The block table is as wide as the longest one in this step, not as wide as the batch's.

        Source: vllm/v1/worker/gpu_model_runner.py#L2183-L2482
        (GPUModelRunner._build_attention_metadata) @ v0.22.1
        """
        # TODO 05.6
        raise NotImplementedError(
            "TODO 05.6: write ModelRunner._attention_metadata in labs/05-model-runner/model_runner.py"
            " (phase 05, 02-mini-build.md#task-6)"
        )

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        """The array on the device, where it arrives with all others of its step, in one copy: until
        :meth:`_prepare_inputs` is done it may be sliced, but not computed with."""
        return self.transfer.put(torch.from_numpy(array))
