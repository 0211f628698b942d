"""From logits to new tokens: sampling parameters per row, the sampler, and what to report.

Source: vllm/v1/worker/gpu_model_runner.py#L4320-L4588 (GPUModelRunner.sample_tokens) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mini_vllm.core.scheduler_output import LogprobsEntry, ModelRunnerOutput
from mini_vllm.sample.custom import CustomSampler
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow, make_sampling_metadata
from mini_vllm.sample.sampler import ERRORS, LogprobsTensors, Sampler, compute_prompt_logprobs
from mini_vllm.worker.input_batch import CachedRequestState


class SampleStep:
    """Samples a token for each row, and remembers the rows' parameters while they stay the same.

    Args:
        device: where the logits are.
        processors: of logits, a user's own; see `sample.custom`.
    """

    def __init__(self, device: torch.device, processors: Sequence[Any] = ()) -> None:
        self.device = device
        self.sampler = CustomSampler(processors) if processors else Sampler()
        self._states: list[CachedRequestState] = []
        self._metadata: SamplingMetadata | None = None

    def sample(
        self, states: list[CachedRequestState], logits: Tensor, result: ModelRunnerOutput
    ) -> Tensor:
        """Choose the next token of every row, and report it in ``result``.

        Args:
            states: of the B rows.
            logits: ``[B, V]`` float32.

        Returns:
            Token ids ``[B]`` int64 on the CPU; negative for a row that failed, see ``ERRORS``.
        """
        metadata = self.metadata_of(states, logits.shape[1])
        sampled = self.sampler(logits, self._without_bad_words(states, metadata, logits.shape[1]))
        metadata.advance(sampled.sampled_token_ids)
        token_ids = sampled.sampled_token_ids.cpu()
        entries = logprob_entries(sampled.logprobs) if sampled.logprobs else []
        for index, (state, token_id) in enumerate(zip(states, token_ids.tolist(), strict=True)):
            if token_id < 0:
                result.failed[state.req_id] = ERRORS[token_id]
                continue
            result.sampled_token_ids[state.req_id] = [token_id]
            params = state.sampling_params
            if params.logprob_token_ids is not None:
                wanted = [token_id, *params.logprob_token_ids]
                result.logprobs[state.req_id] = [logprobs_of(logits[index], wanted)]
            elif params.logprobs is not None:
                result.logprobs[state.req_id] = [entries[index].top(params.logprobs)]
        return token_ids

    def _without_bad_words(
        self, states: list[CachedRequestState], metadata: SamplingMetadata, vocab_size: int
    ) -> SamplingMetadata:
        """The same, with the tokens ruled out that would complete a bad word now.

        Source: vllm/v1/sample/ops/bad_words.py#L9-L36 (apply_bad_words) @ v0.22.1
        """
        pairs = [
            (row, token_id)
            for row, state in enumerate(states)
            if state.sampling_params.bad_words_token_ids
            for token_id in tokens_to_avoid(
                state.sampling_params.bad_words_token_ids, state.output_token_ids
            )
        ]
        if not pairs:
            return metadata
        allowed = metadata.allowed
        if allowed is None:
            allowed = torch.ones(len(states), vocab_size, dtype=torch.bool, device=self.device)
        rows, token_ids = torch.tensor(pairs, device=self.device).unbind(1)
        allowed = allowed.index_put((rows, token_ids), torch.tensor(False, device=self.device))
        return replace(metadata, allowed=allowed)

    def metadata_of(self, states: list[CachedRequestState], vocab_size: int) -> SamplingMetadata:
        """Per-row sampling parameters, kept while the same requests are sampled step after step.

        The same requests, not the same ids: an id may come back as another request.
        """
        same = len(states) == len(self._states) and all(
            now is before for now, before in zip(states, self._states, strict=True)
        )
        is_custom = isinstance(self.sampler, CustomSampler)
        if self._metadata is None or not same:
            rows = [sampling_row(state) for state in states]
            if is_custom:
                self.sampler.rows_changed(rows)
            self._metadata = make_sampling_metadata(rows, vocab_size, self.device)
            self._states = states
        elif is_custom:
            self.sampler.rows_stayed()
        return self._metadata


def tokens_to_avoid(
    words: Sequence[Sequence[int]], output_token_ids: Sequence[int]
) -> Iterator[int]:
    """The last token of each word whose other tokens are the end of the output."""
    for *before, last in words:
        start = len(output_token_ids) - len(before)
        if start >= 0 and list(output_token_ids[start:]) == before:
            yield last


def logprobs_of(logits: Tensor, token_ids: list[int]) -> LogprobsEntry:
    """Log probabilities of these tokens, by one row of logits ``[V]``; the first is the sampled.

    Source: vllm/v1/sample/sampler.py#L146-L206 (Sampler.gather_specific_token_logprobs) @ v0.22.1
    """
    logprobs = logits.float().log_softmax(dim=-1)
    wanted = logprobs[torch.tensor(token_ids, device=logits.device)].tolist()
    rank = int((logprobs >= logprobs[token_ids[0]]).sum())
    return LogprobsEntry(token_ids, wanted, rank)


def sampling_row(state: CachedRequestState) -> SamplingRow:
    eos = () if state.eos_token_id is None else (state.eos_token_id,)
    return SamplingRow(state.sampling_params, state.prompt_token_ids, state.output_token_ids, eos)


def logprob_entries(tensors: LogprobsTensors) -> list[LogprobsEntry]:
    columns = (column.tolist() for column in tensors)
    return [LogprobsEntry(*row) for row in zip(*columns, strict=True)]


def prompt_logprob_entries(
    logits: Tensor, targets: Sequence[int], num_logprobs: int
) -> list[LogprobsEntry]:
    """Candidates for the prompt tokens ``targets``, from the logits ``[N, V]`` before each."""
    target_ids = torch.tensor(targets, device=logits.device)
    return logprob_entries(compute_prompt_logprobs(logits, target_ids, num_logprobs))
