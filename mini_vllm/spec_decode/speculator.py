"""What speculation adds to a step of the runner: fills its slot ``speculator``.

::

    write_drafts   the plan's drafts, behind each row's tokens
    spread_rows    m + 1 rows of logits for a request with m drafts
    verify         1 to m + 1 tokens for each request
    propose        drafts for the next step

All methods take the same way through the runner, which names none of them: only the proposers
differ. A step without drafts is sampled as usual.

Source: vllm/v1/worker/gpu_model_runner.py#L4320-L4588 (GPUModelRunner.sample_tokens) @ v0.22.1
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID, RejectionSampler
from mini_vllm.sample.sampler import ERRORS
from mini_vllm.spec_decode.metadata import (
    SpecDecodeMetadata,
    advance_ragged,
    calc_spec_decode_metadata,
    expand_to_rows,
)
from mini_vllm.spec_decode.proposer import Proposer, ProposerInput
from mini_vllm.worker.input_batch import CachedRequestState, InputBatch
from mini_vllm.worker.sample_step import SampleStep, logprob_entries, logprobs_of
from mini_vllm.worker.step_inputs import StepInputs


class Speculator:
    """Has drafts verified, and guesses the next ones.

    Args:
        proposer: makes the drafts.
        rejection_sampler: judges them.
        batch: the runner's; rows are written behind their tokens.
        device: of the model.
    """

    def __init__(
        self,
        proposer: Proposer,
        rejection_sampler: RejectionSampler,
        batch: InputBatch,
        device: torch.device,
    ) -> None:
        self.proposer = proposer
        self.rejection_sampler = rejection_sampler
        self.batch = batch
        self.device = device
        self._metadata: SpecDecodeMetadata | None = None
        self._drafts = torch.empty(0)

    def write_drafts(self, plan: SchedulerOutput) -> None:
        """Put the plan's drafts behind each row's tokens, without counting them as tokens."""
        for request_id, token_ids in plan.scheduled_spec_decode_tokens.items():
            row = self.batch.req_id_to_row[request_id]
            start = self.batch.num_tokens[row]
            self.batch.token_ids[row, start : start + len(token_ids)] = token_ids

    def spread_rows(self, plan: SchedulerOutput, inputs: StepInputs) -> None:
        """Ask for the logits of m + 1 tokens of each request with m drafts, not only the last."""
        drafts = plan.scheduled_spec_decode_tokens
        self._metadata = None
        if not drafts:
            return
        ends = dict(zip(inputs.req_ids, accumulate(inputs.metadata.query_lens_cpu), strict=True))
        request_ids = [self._request_id(row) for row in inputs.sample_rows.tolist()]
        tokens = [drafts.get(request_id, []) for request_id in request_ids]
        self._metadata = calc_spec_decode_metadata(
            [len(ids) for ids in tokens], [ends[request_id] for request_id in request_ids]
        )
        self._drafts = torch.tensor([t for ids in tokens for t in ids], device=self.device)
        inputs.logits_indices = torch.from_numpy(self._metadata.logits_indices).to(self.device)

    def _rows_of(self, inputs: StepInputs) -> NDArray[np.int64]:
        """``[R]``, the batch row of each request of the step."""
        rows = [self.batch.req_id_to_row[request_id] for request_id in inputs.req_ids]
        return np.array(rows, dtype=np.int64)

    def _request_id(self, row: int) -> str:
        state = self.batch.rows[row]
        assert state is not None
        return state.req_id

    @property
    def has_drafts(self) -> bool:
        """Whether the step in progress has drafts to verify."""
        return self._metadata is not None

    def verify(
        self,
        sample_step: SampleStep,
        states: list[CachedRequestState],
        logits: Tensor,
        result: ModelRunnerOutput,
    ) -> Tensor:
        """Choose the tokens of every sampled request, and report them in ``result``.

        Args:
            sample_step: keeps the sampling parameters.
            states: of the B sampled requests.
            logits: ``[N + B, V]`` of the spread rows.

        Returns:
            ``[B, K + 1]`` int64 on the CPU; ``PLACEHOLDER_TOKEN_ID`` behind each one's last.
        """
        assert self._metadata is not None
        num_drafts = self._metadata.num_draft_tokens
        metadata = sample_step.metadata_of(states, logits.shape[1])
        output = self.rejection_sampler(
            num_drafts,
            self._drafts,
            self._draft_probs(states, num_drafts),
            logits,
            metadata
            if metadata.only_argmax
            else expand_to_rows(metadata, num_drafts, self._drafts),
        )
        advance_ragged(metadata, output.token_ids)
        entries = logprob_entries(output.logprobs) if output.logprobs else []
        token_ids, errors = output.token_ids.cpu(), output.errors.tolist()
        first_rows = self._metadata.bonus_logits_indices - num_drafts
        for index, state in enumerate(states):
            if errors[index] < 0:
                result.failed[state.req_id] = ERRORS[errors[index]]
                continue
            tokens = [t for t in token_ids[index].tolist() if t != PLACEHOLDER_TOKEN_ID]
            result.sampled_token_ids[state.req_id] = tokens
            rows = range(int(first_rows[index]), int(first_rows[index]) + len(tokens))
            if (wanted := state.sampling_params.logprob_token_ids) is not None:
                result.logprobs[state.req_id] = [
                    logprob_entries(
                        logprobs_of(logits[row], token_ids.new_tensor([token]), wanted)
                    )[0]
                    for row, token in zip(rows, tokens, strict=True)
                ]
            elif (k := state.sampling_params.logprobs) is not None:
                result.logprobs[state.req_id] = [entries[row].top(k) for row in rows]
        return token_ids

    def _draft_probs(
        self, states: list[CachedRequestState], num_drafts: list[int]
    ) -> Tensor | None:
        """``[N, V]``, what the drafts were drawn from; None: they were chosen."""
        probs = [
            self.proposer.draft_probs(state.req_id, count)
            for state, count in zip(states, num_drafts, strict=True)
            if count
        ]
        known = [p for p in probs if p is not None]
        return torch.cat(known) if known else None

    def propose(
        self, plan: SchedulerOutput, inputs: StepInputs, hidden: Tensor, result: ModelRunnerOutput
    ) -> dict[str, list[int]]:
        """Drafts for the next step, by request; the batch holds this step's tokens already.

        Args:
            hidden: ``[T, H]``.
            result: with the tokens of the step.
        """
        rows = self._rows_of(inputs)
        drafts, sampled = plan.scheduled_spec_decode_tokens, result.sampled_token_ids

        def counts(lists: dict[str, list[int]]) -> NDArray[np.int32]:
            return np.array([len(lists.get(i, ())) for i in inputs.req_ids], dtype=np.int32)

        step = ProposerInput(
            batch=self.batch,
            rows=rows,
            num_computed=self.batch.num_computed_tokens[rows],
            num_scheduled=np.array(inputs.metadata.query_lens_cpu, dtype=np.int32),
            num_drafts=counts(drafts),
            num_sampled=counts(sampled),
            hidden=hidden,
        )
        return self.proposer.propose(step)

    def scrub(self) -> None:
        """A request has failed: clean what a proposer keeps of it."""
        self.proposer.scrub()
