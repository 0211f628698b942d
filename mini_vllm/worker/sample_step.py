"""From logits to new tokens: sampling parameters per row, the sampler, and what to report.

Source: vllm/v1/worker/gpu_model_runner.py#L4320-L4588 (GPUModelRunner.sample_tokens) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mini_vllm.core.scheduler_output import LogprobsEntry, ModelRunnerOutput
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow, make_sampling_metadata
from mini_vllm.sample.sampler import ERRORS, LogprobsTensors, Sampler, compute_prompt_logprobs
from mini_vllm.worker.input_batch import CachedRequestState


class SampleStep:
    """Samples a token for each row, and remembers the rows' parameters while they stay the same.

    Args:
        device: where the logits are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sampler = Sampler()
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
        sampled = self.sampler(logits, metadata)
        metadata.advance(sampled.sampled_token_ids)
        token_ids = sampled.sampled_token_ids.cpu()
        entries = logprob_entries(sampled.logprobs) if sampled.logprobs else []
        for index, (state, token_id) in enumerate(zip(states, token_ids.tolist(), strict=True)):
            if token_id < 0:
                result.failed[state.req_id] = ERRORS[token_id]
                continue
            result.sampled_token_ids[state.req_id] = [token_id]
            if state.sampling_params.logprobs is not None:
                entry = entries[index].top(state.sampling_params.logprobs)
                result.logprobs[state.req_id] = [entry]
        return token_ids

    def metadata_of(self, states: list[CachedRequestState], vocab_size: int) -> SamplingMetadata:
        """Per-row sampling parameters, kept while the same requests are sampled step after step.

        The same requests, not the same ids: an id may come back as another request.
        """
        same = len(states) == len(self._states) and all(
            now is before for now, before in zip(states, self._states, strict=True)
        )
        if self._metadata is None or not same:
            rows = [sampling_row(state) for state in states]
            self._metadata = make_sampling_metadata(rows, vocab_size, self.device)
            self._states = states
        return self._metadata


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
