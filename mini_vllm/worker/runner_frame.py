"""The frame of a forward pass: what happens around the batch's own bookkeeping, and in which order.

::

    execute_model   plan ─► rows ─► images, KV loads ─► T tokens ─► model ─► logits of B rows
    sample_tokens   grammar masks ─► sampler or verification ─► new tokens ─► drafts

The bookkeeping itself, rows and flattening, is
:class:`~mini_vllm.worker.model_runner.ModelRunner`'s.

Source: vllm/v1/worker/gpu_model_runner.py#L3954-L4317 (GPUModelRunner.execute_model) @ v0.22.1
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mini_vllm.attention import AttentionMetadata
from mini_vllm.core.scheduler_output import (
    GrammarOutput,
    ModelRunnerOutput,
    SchedulerOutput,
)
from mini_vllm.distributed.pipeline import PipelineStage, missing_tokens
from mini_vllm.lora.slots import LoRAModelManager
from mini_vllm.platforms.transfer import Transfer, on_device
from mini_vllm.sample.sampler import compute_prompt_logprobs
from mini_vllm.structured_output.utils import apply_grammar_bitmask
from mini_vllm.worker.adapters import map_adapters
from mini_vllm.worker.cuda_graphs import DecodeGraphs, Recorder, make_buckets
from mini_vllm.worker.cudagraph_dispatcher import CUDAGraphMode, dispatch, is_uniform_decode
from mini_vllm.worker.group_tables import GroupTables, show_no_request
from mini_vllm.worker.images import RunnerImages
from mini_vllm.worker.input_batch import CachedRequestState, InputBatch
from mini_vllm.worker.kv_cache import KVCache
from mini_vllm.worker.kv_connector import RunnerConnector
from mini_vllm.worker.late_results import LateOutput, LateResults, look_up
from mini_vllm.worker.sample_step import (
    Drawn,
    PromptDrawn,
    SampleStep,
    report_drawn,
    report_prompts,
    sampler_of,
)
from mini_vllm.worker.step_inputs import StepInputs

if TYPE_CHECKING:
    from mini_vllm.worker.pooling import RunnerPooler
    from mini_vllm.worker.recorded_head import RecordedHead
    from mini_vllm.worker.slots import Speculator

BROKEN = "the model produced NaN or infinite numbers in the prompt; check the weights and the dtype"


@dataclass(slots=True)
class StepState:
    """State that is kept between the two halves of a step."""

    plan: SchedulerOutput
    result: ModelRunnerOutput
    inputs: StepInputs | None = None
    """None if the plan has no tokens."""
    hidden: Tensor | None = None
    """``[T, H]``; None on a pipeline stage that hands them on."""
    prompts: list[PromptDrawn] = field(default_factory=list)
    """Log probabilities of prompts, on the device."""


class RunnerFrame(ABC):
    """Runs the model over the batch and the KV cache, and samples.

    Args:
        model: maps ``(input_ids [T], positions [T], kv_caches, metadata)`` to hidden states
            ``[T, H]``, and ``compute_logits`` maps ``[B, H]`` to ``[B, V]``.
        kv_cache: blocks for all layers.
        max_num_seqs, max_model_len, block_size: the size of the batch's rows.
        device: of the model.
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
        self.transfer = Transfer(device)
        self.requests: dict[str, CachedRequestState] = {}
        self.batch = InputBatch(max_num_seqs, max_model_len, block_size)
        self.logits_processors: Sequence[Any] = ()
        self.sample_step = SampleStep(device)
        self.graphs: DecodeGraphs | None = None
        self.head: RecordedHead | None = None
        """With graphs: what comes behind them."""
        self.encoder_cache: dict[str, Tensor] = {}
        """What the encoder has made of images, by hash; the scheduler says what is kept."""
        self.group_tables: GroupTables | None = None
        """If the model's layers remember differently."""
        self.images: RunnerImages | None = None
        self.lora: LoRAModelManager | None = None
        self.connector: RunnerConnector | None = None
        self.speculator: Speculator | None = None
        self.pipeline: PipelineStage | None = None
        self.pooler: RunnerPooler | None = None
        """Of a model that embeds or classifies: then nothing is sampled."""
        self.late: LateResults | None = None
        """With results that come one step late: where the newest tokens are."""
        self._state: StepState | None = None

    def use_processors(self, processors: Sequence[Any]) -> None:
        """Let a user's own processors change the logits of every step; see `sample.custom`."""
        self.logits_processors = processors
        self.sample_step = SampleStep(self.device, processors)

    @abstractmethod
    def _update_states(self, output: SchedulerOutput) -> None:
        """Bring the batch's rows in line with the plan."""

    @abstractmethod
    def _prepare_inputs(self, output: SchedulerOutput) -> StepInputs:
        """The tensors of one forward pass."""

    @abstractmethod
    def _to_device(self, array: NDArray[Any]) -> Tensor:
        """A copy on the device."""

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Both halves of a step, for a caller with nothing to do in between."""
        self.execute_model(plan)
        return self.sample_tokens(None)

    @torch.inference_mode()
    def execute_model(self, plan: SchedulerOutput) -> None:
        """The forward pass of a plan, up to the hidden states that :meth:`sample_tokens` needs.

        Source: vllm/v1/worker/gpu_model_runner.py#L3954-L4317 (GPUModelRunner.execute_model)
        @ v0.22.1
        """
        self._rewind(plan)
        self._recall_output(plan)
        self._append_known(plan)
        self._update_states(plan)
        new_blocks = self.group_tables.update(plan) if self.group_tables is not None else []
        self._move_blocks(plan)
        self.kv_cache.zero(new_blocks)
        self._state = state = StepState(plan, ModelRunnerOutput())
        if self.images is not None:
            self.images.update(plan, self.requests)
        if self.pooler is not None:
            self.pooler.update(plan)
        if self.connector is not None:
            self.connector.begin(plan)
        if plan.num_scheduled_tokens:
            if self.speculator is not None:
                self.speculator.write_drafts(plan)
            with self.transfer.together():
                inputs = self._prepare_inputs(plan)
                if self.group_tables is not None:
                    self.group_tables.apply(inputs)
            if self.images is not None and self.late is not None:  # images need the token ids
                inputs.input_ids = self.late.resolve(inputs.input_ids)
            if self.images is not None:
                self.images.apply(inputs, state.result)
            if self.lora is not None:
                map_adapters(self.lora, self.requests, inputs, state.result)
            state.inputs, state.hidden = inputs, self._forward(inputs)
            if state.hidden is not None:
                if self.kv_cache.is_mixed:
                    self._fail_broken(inputs, state.hidden, state.result)
                state.prompts = self._prompt_logprobs(inputs, state.hidden)
            if self.speculator is not None:
                self.speculator.spread_rows(plan, inputs)
        if self.connector is not None:
            self.connector.end(plan, state.result)

    @torch.inference_mode()
    def sample_tokens(self, masks: GrammarOutput | None) -> ModelRunnerOutput:
        """The second half of a step: new tokens for the requests that are sampled in it.

        Args:
            masks: the tokens that grammars let through, for requests that have one.

        Source: vllm/v1/worker/gpu_model_runner.py#L4320-L4588 (GPUModelRunner.sample_tokens)
        @ v0.22.1
        """
        state = self._take_state()
        result, inputs, hidden = state.result, state.inputs, state.hidden
        if inputs is None or hidden is None:
            return result
        report_prompts(state.prompts, result)
        if self.pooler is not None:
            self.pooler.pool(inputs, hidden, result)
        elif len(inputs.sample_rows):
            self._append_tokens(inputs.sample_rows, self._sample(state, inputs, hidden, masks))
        if self.speculator is not None:
            result.draft_token_ids = self.speculator.propose(state.plan, inputs, hidden, result)
        if result.failed:
            self.scrub()
        if self.images is not None:
            self.images.keep(result.failed if self.late is None else ())
        return result

    @torch.inference_mode()
    def sample_tokens_late(self, masks: GrammarOutput | None) -> LateOutput:
        """:meth:`sample_tokens`, but the tokens stay on the device until they are asked for.

        The next step may be executed meanwhile. A failed row is reported late, too; the engine
        calls :meth:`scrub` then. All encodings of images are kept until the scheduler evicts them:
        it has planned another step before it hears of a failure, and that step may count on them.
        """
        assert self.late is not None
        state = self._take_state()
        inputs, drawn, rows = state.inputs, None, np.zeros(0, dtype=np.int64)
        if inputs is not None and state.hidden is not None and len(inputs.sample_rows):
            rows = inputs.sample_rows
            drawn = self._draw(state, inputs, state.hidden, masks)
        if self.images is not None:
            self.images.keep(())
        return self.late.reserve(rows, drawn, state.prompts, state.result)

    def _fail_broken(self, inputs: StepInputs, hidden: Tensor, result: ModelRunnerOutput) -> None:
        """Fail requests whose state is not finite, as far as no token is sampled for them: the
        sampler sees the others.

        A broken state breaks all later tokens, and requests that find it in the cache. The hidden
        state of a chunk's last token shows it, because that token has read the state.
        """
        if len(inputs.sample_rows) == len(inputs.req_ids):
            return
        last = inputs.metadata.query_start_loc[1:].long() - 1
        unsampled = torch.isin(last, inputs.logits_indices, invert=True)
        broken = unsampled & ~hidden[last].isfinite().all(1)
        for row in broken.nonzero().flatten().tolist():
            result.failed[inputs.req_ids[row]] = BROKEN

    def _take_state(self) -> StepState:
        assert self._state is not None, "execute_model comes first"
        state, self._state = self._state, None
        return state

    def _logits(
        self, state: StepState, inputs: StepInputs, hidden: Tensor, masks: GrammarOutput | None
    ) -> Tensor:
        """Logits ``[B, V]`` of the rows to sample, without the tokens that grammars forbid."""
        logits = self.model.compute_logits(hidden[inputs.logits_indices])
        if masks is not None:
            self._apply_masks(masks, state.plan, inputs, logits)
        return logits

    def _draw(
        self, state: StepState, inputs: StepInputs, hidden: Tensor, masks: GrammarOutput | None
    ) -> Drawn:
        """The tokens of the rows to sample: by a replay, if that is all they ask for."""
        states = [self._state_in_row(row) for row in inputs.sample_rows.tolist()]
        if self.head is not None and masks is None:
            rows = inputs.logits_indices
            drawn = self.sample_step.draw_recorded(states, self.head, hidden, rows)
            if drawn is not None:
                return drawn
        logits = self._logits(state, inputs, hidden, masks)
        if self.late is not None and self.sample_step.looks_back(states):
            self.late.settle()
        return self.sample_step.draw(states, logits)

    def scrub(self) -> None:
        """A request has failed: what it left in the caches must not spoil later requests."""
        self.kv_cache.scrub()
        if self.speculator is not None:
            self.speculator.scrub()

    def restart(self, req_ids: Sequence[str]) -> None:
        """Forget all rows, and all requests but these, which come back as new or resumed ones."""
        self.requests = {i: self.requests[i] for i in req_ids if i in self.requests}
        self.batch.rows.clear()
        self.batch.req_id_to_row.clear()
        if self.group_tables is not None:
            self.group_tables.clear()
        self.use_processors(self.logits_processors)
        self._state = None
        if self.late is not None:
            self.late.clear()
        if self.images is not None:
            self.images.restart()
        if self.pooler is not None:
            self.pooler.restart(req_ids)

    def _rewind(self, plan: SchedulerOutput) -> None:
        """Forget what was sampled for requests whose step the scheduler has thrown away."""
        for req_id, num_tokens in plan.rewound.items():
            state = self.requests.get(req_id)
            if state is None:
                continue
            del state.output_token_ids[num_tokens - len(state.prompt_token_ids) :]
            row = self.batch.req_id_to_row.get(req_id)
            if row is not None:
                self.batch.num_tokens[row] = num_tokens
            self.sample_step = SampleStep(
                self.device, self.logits_processors
            )  # it has counted them

    def _recall_output(self, plan: SchedulerOutput) -> None:
        """Take a resumed request's output from the plan: a step that was undone may have left
        another one here."""
        for req_id, token_ids in plan.scheduled_cached_reqs.all_token_ids.items():
            state = self.requests[req_id]
            state.output_token_ids[:] = token_ids[len(state.prompt_token_ids) :]

    def _append_known(self, plan: SchedulerOutput) -> None:
        """Take from the plan the tokens that the last pipeline stage has sampled, on the others."""
        cached = plan.scheduled_cached_reqs
        for req_id, num_computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if req_id not in plan.new_token_ids:
                continue
            rows = np.array([self.batch.req_id_to_row[req_id]])
            num_known = int(self.batch.num_tokens[rows[0]])
            for token in missing_tokens(num_known, num_computed, plan.new_token_ids[req_id]):
                self.batch.append_tokens(rows, np.array([token]))

    def _apply_masks(
        self, masks: GrammarOutput, plan: SchedulerOutput, inputs: StepInputs, logits: Tensor
    ) -> None:
        """Forbid what grammars do not let through. A request with k drafts has k + 1 rows."""
        drafts = plan.scheduled_spec_decode_tokens
        req_ids = [self._state_in_row(row).req_id for row in inputs.sample_rows]
        num_rows = [1 + len(drafts.get(req_id, ())) for req_id in req_ids]
        apply_grammar_bitmask(logits, masks, req_ids, num_rows)

    def _sample(
        self, state: StepState, inputs: StepInputs, hidden: Tensor, masks: GrammarOutput | None
    ) -> NDArray[np.int64]:
        """New tokens of the step, reported in its result: one a request, or some if it had drafts.

        Returns:
            ``[B]``, or ``[B, K + 1]`` with negative ids behind each request's last.
        """
        if self.speculator is not None and self.speculator.has_drafts:
            states = [self._state_in_row(row) for row in inputs.sample_rows]
            logits = self._logits(state, inputs, hidden, masks)
            return self.speculator.verify(self.sample_step, states, logits, state.result).numpy()
        drawn = self._draw(state, inputs, hidden, masks).apply(Tensor.cpu)
        report_drawn(drawn, drawn.token_ids.tolist(), state.result)
        return drawn.token_ids.numpy()

    def _append_tokens(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Append ``[B]`` tokens, or ``[B, K + 1]``; negative ones stand behind a row's last, and
        in place of all where the row has failed."""
        for column in token_ids.reshape(len(token_ids), -1).T:
            has_token = column >= 0
            if not has_token.any():
                return
            self.batch.append_tokens(rows[has_token], column[has_token])

    def _forward(self, inputs: StepInputs) -> Tensor | None:
        """Hidden states ``[T, H]``: by replaying a CUDA graph if there is one for this step."""
        step = inputs.positions, inputs.metadata
        if self.graphs is not None and self._graph_mode(inputs, self.graphs) is CUDAGraphMode.FULL:
            if self.late is not None and self.head is not None:
                self.late.leave_with(self.head)
            hidden = self.graphs.replay(inputs.input_ids, *step)
            if hidden is not None:
                return hidden
        if self.late is not None and self.images is None:
            inputs.input_ids = self.late.resolve(inputs.input_ids)
        return self.run_model(inputs.input_ids, *step, **inputs.extra)

    def _graph_mode(self, inputs: StepInputs, graphs: DecodeGraphs) -> CUDAGraphMode:
        """FULL if a recorded step of decodes serves this one; what else the model is called with
        was not recorded."""
        metadata, num_tokens = inputs.metadata, len(inputs.input_ids)
        mode, _ = dispatch(
            CUDAGraphMode.FULL_DECODE_ONLY,
            graphs.buckets,
            len(self.batch.token_ids),
            num_tokens,
            is_uniform_decode(num_tokens, metadata.num_reqs, metadata.max_query_len, 1),
            disable_full=bool(inputs.extra),
        )
        return mode

    def run_model(
        self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata, **extra: Tensor
    ) -> Tensor | None:
        """Hidden states ``[T, H]``, computed launch by launch; fills the KV cache.

        None on a pipeline stage that hands them on.
        """
        if self.pipeline is None:
            return self.model(input_ids, positions, self.kv_cache.layers, metadata, **extra)
        extra |= self.pipeline.receive(len(input_ids))
        result = self.model(input_ids, positions, self.kv_cache.layers, metadata, **extra)
        return self.pipeline.hand_on(result)

    def _recorded(
        self, input_ids: Tensor, positions: Tensor, metadata: AttentionMetadata
    ) -> Tensor | None:
        """:meth:`run_model` as it is recorded: tokens that only the device knows are looked up in
        each replay, and what the first layer derives of a step for all others is derived anew."""
        if self.late is not None and self.head is not None:
            input_ids = look_up(input_ids, self.head.token_ids)
        return self.run_model(input_ids, positions, metadata.underived())

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
        if self.group_tables is not None:
            show_no_request(self.group_tables.layout, metadata)
        positions = torch.arange(num_tokens, device=self.device)
        if self.lora is not None:
            self.lora.prepare_capture()
        hidden = self.run_model(torch.zeros_like(positions), positions, metadata)
        if hidden is not None:
            self.model.compute_logits(hidden[-1:])
        if self.kv_cache.is_mixed:
            self.kv_cache.zero([0])  # which now holds a state
        if record is not None:
            from mini_vllm.worker.decode_inputs import DecodeInputs, GroupedInputs
            from mini_vllm.worker.recorded_head import RecordedHead

            sizes = (max_num_reqs, max_model_len, batch.block_size, self.device)
            tables = self.group_tables
            inputs = GroupedInputs(tables, *sizes) if tables else DecodeInputs(*sizes)
            buckets = make_buckets(max_num_reqs)
            assert hidden is not None, "a stage of a pipeline records nothing"
            self.head = head = RecordedHead(
                lambda hidden: self.model.compute_logits(hidden), sampler_of(self.device),
                hidden, max_num_reqs,
            )  # fmt: skip
            graphs = DecodeGraphs(self._recorded, inputs, buckets, record)
            graphs.capture()
            # Compile what fills them, too: a row is copied onto itself.
            inputs.fill(inputs.input_ids[:1], inputs.positions[:1], inputs.metadata(1), 1)
            head.capture(buckets, record)
            self.graphs = graphs

    def forget_recordings(self) -> None:
        """Drop the recordings: they hold addresses, which are about to change."""
        self.graphs = self.head = None

    def _move_blocks(self, output: SchedulerOutput) -> None:
        """Copy blocks between device and host, and on the device, before anything is read."""
        self.kv_cache.swap_out(output.blocks_to_swap_out)
        self.kv_cache.swap_in(output.blocks_to_swap_in)
        self.kv_cache.copy(output.blocks_to_copy)

    def _state_in_row(self, row: int) -> CachedRequestState:
        state = self.batch.rows[row]
        assert state is not None
        return state

    def _prompt_logprobs(self, inputs: StepInputs, hidden: Tensor) -> list[PromptDrawn]:
        """Log probabilities of the prompt tokens that follow those computed in this step.

        Source: vllm/v1/worker/gpu_model_runner.py#L5338-L5440
        (GPUModelRunner._get_prompt_logprobs_dict) @ v0.22.1
        """
        found: list[PromptDrawn] = []
        start = 0
        metadata = inputs.metadata
        for req_id, num_tokens, seq_len in zip(
            inputs.req_ids, metadata.query_lens_cpu, metadata.seq_lens_cpu, strict=True
        ):
            state = self.requests[req_id]
            num_logprobs = state.sampling_params.prompt_logprobs
            first = seq_len - num_tokens + 1
            if num_logprobs is not None and first < len(state.prompt_token_ids):
                targets = state.prompt_token_ids[first : seq_len + 1]
                logits = self.model.compute_logits(hidden[start : start + len(targets)])
                target_ids = on_device(torch.tensor(targets), logits.device)
                tensors = compute_prompt_logprobs(logits, target_ids, num_logprobs)
                found.append(PromptDrawn(req_id, first, tensors))
            start += num_tokens
        return found
