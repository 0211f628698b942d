"""The model runner: turns a scheduler's plan into one forward pass and new tokens.

::

    SchedulerOutput ─► update rows ─► flatten ─► model ─► rows to sample ─► sampler ─► token ids
                       (InputBatch)   T tokens   [T, H]   [B, H] → [B, V]              {id: [t]}

Source: vllm/v1/worker/gpu_model_runner.py#L3954-L4317 (GPUModelRunner.execute_model) @ v0.22.1
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mini_vllm.attention import AttentionMetadata
from mini_vllm.core.scheduler_output import NewRequestData, SchedulerOutput
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow, make_sampling_metadata
from mini_vllm.sample.sampler import ERRORS, LogprobsTensors, Sampler, compute_prompt_logprobs
from mini_vllm.worker.cuda_graphs import DecodeGraphs, Recorder, StaticInputs, make_buckets
from mini_vllm.worker.input_batch import (
    CachedRequestState,
    FlatBatch,
    InputBatch,
    decodes_first,
    flatten_tokens,
    rows_to_sample,
)
from mini_vllm.worker.kv_cache import KVCache


class LogprobsEntry(NamedTuple):
    """The candidates for one position: the sampled (or prompt) token, then the most likely."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    """Of the first token."""

    def top(self, num_logprobs: int) -> LogprobsEntry:
        """The same with at most ``num_logprobs`` of the most likely tokens."""
        end = num_logprobs + 1
        return LogprobsEntry(self.token_ids[:end], self.logprobs[:end], self.rank)


def _logprob_entries(tensors: LogprobsTensors) -> list[LogprobsEntry]:
    columns = (column.tolist() for column in tensors)
    return [LogprobsEntry(*row) for row in zip(*columns, strict=True)]


@dataclass(slots=True)
class ModelRunnerOutput:
    """What one forward pass brought.

    Source: vllm/v1/outputs.py#L230-L280 (ModelRunnerOutput) @ v0.22.1
    """

    sampled_token_ids: dict[str, list[int]] = field(default_factory=dict)
    """New tokens; requests whose prompt is not fully computed are absent."""
    logprobs: dict[str, list[LogprobsEntry]] = field(default_factory=dict)
    """One entry per new token, where asked for."""
    prompt_logprobs: dict[str, list[LogprobsEntry]] = field(default_factory=dict)
    """The same for the prompt tokens after those computed in this step."""
    failed: dict[str, str] = field(default_factory=dict)
    """Requests whose logits cannot be sampled from, with the reason."""


@dataclass(slots=True)
class StepInputs:
    """The tensors of one forward pass over R requests with T tokens."""

    req_ids: list[str]
    input_ids: Tensor
    """``[T]`` int64."""
    positions: Tensor
    """``[T]`` int64."""
    metadata: AttentionMetadata
    sample_rows: NDArray[np.int64]
    """``[B]``, the batch rows of the requests that get a token in this step."""
    logits_indices: Tensor
    """``[B]`` int64, the last token of each of them among the T."""


class ModelRunner:
    """Owns the batch and the KV cache, and runs the model over them.

    Args:
        model: maps ``(input_ids [T], positions [T], kv_caches, metadata)`` to hidden states
            ``[T, H]``, and ``compute_logits`` maps ``[B, H]`` to ``[B, V]``.
        kv_cache: blocks for all layers.
        max_num_seqs, max_model_len, block_size: the size of the batch's rows.
        device: where the model lives.
    """

    def __init__(
        self,
        model: nn.Module,
        kv_cache: KVCache,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        self.model = model
        self.kv_cache = kv_cache
        self.device = device
        self.requests: dict[str, CachedRequestState] = {}
        self.batch = InputBatch(max_num_seqs, max_model_len, block_size)
        self.sampler = Sampler()
        self.graphs: DecodeGraphs | None = None
        self._sampling: tuple[list[str], SamplingMetadata] | None = None

    @torch.inference_mode()
    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Carry out one plan.

        Source: vllm/v1/worker/gpu_model_runner.py#L3954-L4317 (GPUModelRunner.execute_model)
        @ v0.22.1
        """
        self._update_states(output)
        self._move_blocks(output)
        if not output.num_scheduled_tokens:
            return ModelRunnerOutput()
        inputs = self._prepare_inputs(output)
        hidden = self._forward(inputs)
        result = ModelRunnerOutput()
        self._add_prompt_logprobs(inputs, hidden, result)
        if len(inputs.sample_rows):
            logits = self.model.compute_logits(hidden[inputs.logits_indices])
            self._sample(inputs, logits, result)
        return result

    def _forward(self, inputs: StepInputs) -> Tensor:
        """Hidden states ``[T, H]``: by replaying a CUDA graph if there is one for this step."""
        step = (inputs.input_ids, inputs.positions, inputs.metadata)
        hidden = self.graphs.replay(*step) if self.graphs is not None else None
        return self.run_model(*step) if hidden is None else hidden

    def run_model(
        self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        """Hidden states ``[T, H]``, computed launch by launch; fills the KV cache."""
        return self.model(input_ids, positions, self.kv_cache.layers, metadata)

    @torch.inference_mode()
    def warm_up(self, num_tokens: int, record: Recorder | None) -> None:
        """Run a prompt of ``num_tokens`` (at least 2) that leaves no trace, then record graphs.

        The run compiles kernels and makes the allocator reserve what the largest step needs, so
        that no request has to wait for either.

        Args:
            record: for the decode graphs; None: no graphs.

        Source: vllm/v1/worker/gpu_model_runner.py#L6373-L6461 (GPUModelRunner.capture_model)
        @ v0.22.1
        """
        batch = self.batch
        max_num_reqs, max_model_len = batch.token_ids.shape
        null_blocks = [0] * batch.block_table.shape[1]
        num_tokens = min(num_tokens, max_model_len)
        metadata = AttentionMetadata.from_lists(
            [num_tokens], [num_tokens], [null_blocks], batch.block_size, self.device
        )
        metadata.slot_mapping.fill_(-1)
        positions = torch.arange(num_tokens, device=self.device)
        hidden = self.run_model(torch.zeros_like(positions), positions, metadata)
        self.model.compute_logits(hidden[-1:])
        if record is not None:
            inputs = StaticInputs(max_num_reqs, max_model_len, batch.block_size, self.device)
            graphs = DecodeGraphs(self.run_model, inputs, make_buckets(max_num_reqs), record)
            graphs.capture()
            self.graphs = graphs

    def _update_states(self, output: SchedulerOutput) -> None:
        """Bring the batch's rows in line with the plan: first those who go, then those who come.

        Whoever goes makes room: rows are as many as may run at once. Holes that are left at the
        end are closed.

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

    def _move_blocks(self, output: SchedulerOutput) -> None:
        """Copy blocks between device and host, and on the device, before anything is read."""
        self.kv_cache.swap_out(output.blocks_to_swap_out)
        self.kv_cache.swap_in(output.blocks_to_swap_in)
        self.kv_cache.copy(output.blocks_to_copy)

    def _prepare_inputs(self, output: SchedulerOutput) -> StepInputs:
        """The tensors of one forward pass over R requests with T tokens.

        The scheduled tokens of all requests lie end to end in the order of
        :meth:`_order_requests`; each is looked up by row and position in the batch's arrays.

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
        """What attention needs to know of the flat batch, on the device.

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
        """A copy on the device. From pinned memory it needs no waiting: the GPU fetches it."""
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def _sample(self, inputs: StepInputs, logits: Tensor, result: ModelRunnerOutput) -> None:
        """Choose the next token of each sampled request and append it to its row."""
        states = [self._state_in_row(row) for row in inputs.sample_rows]
        metadata = self._sampling_metadata(states)
        sampled = self.sampler(logits, metadata)
        metadata.advance(sampled.sampled_token_ids)
        token_ids = sampled.sampled_token_ids.cpu().numpy()
        self.batch.append_tokens(inputs.sample_rows, token_ids)
        entries = _logprob_entries(sampled.logprobs) if sampled.logprobs else []
        for index, (state, token_id) in enumerate(zip(states, token_ids.tolist(), strict=True)):
            if token_id < 0:
                result.failed[state.req_id] = ERRORS[token_id]
                continue
            result.sampled_token_ids[state.req_id] = [token_id]
            if state.sampling_params.logprobs is not None:
                entry = entries[index].top(state.sampling_params.logprobs)
                result.logprobs[state.req_id] = [entry]
        if result.failed:
            self.kv_cache.scrub()

    def _state_in_row(self, row: int) -> CachedRequestState:
        state = self.batch.rows[row]
        assert state is not None
        return state

    def _sampling_metadata(self, states: list[CachedRequestState]) -> SamplingMetadata:
        """Per-row sampling parameters, kept while the same requests are sampled step after step."""
        req_ids = [state.req_id for state in states]
        if self._sampling is None or self._sampling[0] != req_ids:
            rows = [
                SamplingRow(
                    state.sampling_params,
                    state.prompt_token_ids,
                    state.output_token_ids,
                    () if state.eos_token_id is None else (state.eos_token_id,),
                )
                for state in states
            ]
            vocab_size = self.model.config.vocab_size
            metadata = make_sampling_metadata(rows, vocab_size, self.device)
            self._sampling = (req_ids, metadata)
        return self._sampling[1]

    def _add_prompt_logprobs(
        self, inputs: StepInputs, hidden: Tensor, result: ModelRunnerOutput
    ) -> None:
        """Log probabilities of the prompt tokens that follow those computed in this step.

        Source: vllm/v1/worker/gpu_model_runner.py#L5338-L5440
        (GPUModelRunner._get_prompt_logprobs_dict) @ v0.22.1
        """
        start = 0
        metadata = inputs.metadata
        for req_id, num_tokens, seq_len in zip(
            inputs.req_ids, metadata.query_lens_cpu, metadata.seq_lens_cpu, strict=True
        ):
            state = self.requests[req_id]
            num_logprobs = state.sampling_params.prompt_logprobs
            first = seq_len - num_tokens + 1
            targets = state.prompt_token_ids[first : seq_len + 1]
            if num_logprobs is not None and targets:
                logits = self.model.compute_logits(hidden[start : start + len(targets)])
                target_ids = torch.tensor(targets, device=self.device)
                logprobs = compute_prompt_logprobs(logits, target_ids, num_logprobs)
                result.prompt_logprobs[req_id] = _logprob_entries(logprobs)
            start += num_tokens
