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
        self._remove_requests(output)
        for request in output.scheduled_new_reqs:
            self._add_new_request(request)
        self._update_cached_requests(output)
        self.batch.condense()

    def _remove_requests(self, output: SchedulerOutput) -> None:
        """Finished and preempted requests leave their rows.

        A finished one is forgotten, for its id may come back as another request. A preempted one
        is remembered: the plan that resumes it does not repeat its prompt and output.

        Source: vllm/v1/worker/gpu_model_runner.py#L1126-L1171 (GPUModelRunner._update_states)
        @ v0.22.1
        """
        for req_id in output.finished_req_ids:
            self.batch.remove_request(req_id)
            self.requests.pop(req_id, None)
        for req_id in output.preempted_req_ids:
            self.batch.remove_request(req_id)

    def _add_new_request(self, new: NewRequestData) -> None:
        """Remember a request that the plan describes in full, and give it a row.

        Source: vllm/v1/worker/gpu_model_runner.py#L1183-L1248 (GPUModelRunner._update_states)
        @ v0.22.1
        """
        state = CachedRequestState(
            new.req_id,
            new.prompt_token_ids,
            new.sampling_params,
            new.eos_token_id,
            lora_name=new.lora_name,
        )
        self.requests[new.req_id] = state
        self.batch.add_request(state, new.block_ids, new.num_computed_tokens)

    def _update_cached_requests(self, output: SchedulerOutput) -> None:
        """Requests that are known already: a resumed one gets a row, a running one its changes.

        ``output.new_block_ids`` holds the whole table of a resumed request and only the additional
        blocks of a running one; a request that got no block is absent. The count of computed
        tokens is the plan's, for both.

        Source: vllm/v1/worker/gpu_model_runner.py#L1359-L1392 (GPUModelRunner._update_states)
        @ v0.22.1
        """
        cached = output.scheduled_cached_reqs
        for req_id, num_computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            block_ids = output.new_block_ids.get(req_id, ())
            if req_id in cached.resumed_req_ids:
                self.batch.add_request(self.requests[req_id], block_ids, num_computed)
            else:
                self.batch.num_computed_tokens[self.batch.req_id_to_row[req_id]] = num_computed
                if block_ids:
                    self.batch.append_blocks(req_id, block_ids)

    def _prepare_inputs(self, output: SchedulerOutput) -> StepInputs:
        """The tensors of one forward pass over R requests with T tokens.

        The scheduled tokens of all requests lie end to end in the order of
        :meth:`_order_requests`; each is looked up by row and position in the batch's arrays,
        of which whole rows are not copied.

        Source: vllm/v1/worker/gpu_model_runner.py#L1863-L2181 (GPUModelRunner._prepare_inputs)
        @ v0.22.1
        """
        batch = self.batch
        req_ids, rows, num_scheduled = self._order_requests(output)
        num_computed = batch.num_computed_tokens[rows]
        flat = flatten_tokens(num_scheduled, num_computed)
        seq_lens = num_computed + num_scheduled
        sampled, logits_indices = rows_to_sample(flat, seq_lens, batch.num_tokens[rows])
        return StepInputs(
            req_ids=req_ids,
            input_ids=self._to_device(batch.token_ids[rows[flat.req_indices], flat.positions]),
            positions=self._to_device(flat.positions),
            metadata=self._attention_metadata(rows, flat, num_scheduled, seq_lens),
            sample_rows=rows[sampled],
            logits_indices=self._to_device(logits_indices),
        )

    def _order_requests(
        self, output: SchedulerOutput
    ) -> tuple[list[str], NDArray[np.int64], NDArray[np.int32]]:
        """The scheduled requests, decodes first and otherwise in the scheduler's order.

        Returns:
            Their ids, their rows in the batch ``[R]`` int64, and their tokens in this step ``[R]``
            int32.
        """
        counts = output.num_scheduled_tokens
        ids = list(counts)
        req_ids = [ids[index] for index in decodes_first(counts.values())]
        rows = np.array([self.batch.req_id_to_row[req_id] for req_id in req_ids], dtype=np.int64)
        num_scheduled = np.array([counts[req_id] for req_id in req_ids], dtype=np.int32)
        return req_ids, rows, num_scheduled

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
        batch = self.batch
        max_blocks = batch.num_blocks[rows].max()
        slots = batch.slot_mapping(rows[flat.req_indices], flat.positions)
        return AttentionMetadata(
            query_start_loc=self._to_device(flat.query_start_loc),
            seq_lens=self._to_device(seq_lens),
            block_table=self._to_device(batch.block_table[rows, :max_blocks]),
            slot_mapping=self._to_device(slots),
            max_query_len=int(num_scheduled.max()),
            max_seq_len=int(seq_lens.max()),
            num_decode_reqs=int((num_scheduled == 1).sum()),
            query_lens_cpu=num_scheduled.tolist(),
            seq_lens_cpu=seq_lens.tolist(),
        )

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        """The array on the device, where it arrives with all others of its step, in one copy: until
        :meth:`_prepare_inputs` is done it may be sliced, but not computed with."""
        return self.transfer.put(torch.from_numpy(array))
