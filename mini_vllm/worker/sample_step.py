"""From logits to new tokens: sampling parameters per row, the sampler, and what to report.

Source: vllm/v1/worker/gpu_model_runner.py#L4320-L4588 (GPUModelRunner.sample_tokens) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mini_vllm.core.scheduler_output import LogprobsEntry, ModelRunnerOutput, PromptLogprobs
from mini_vllm.kernels import can_launch_on
from mini_vllm.platforms.transfer import on_device
from mini_vllm.sample.custom import CustomSampler
from mini_vllm.sample.metadata import (
    SamplingMetadata,
    SamplingRow,
    has_penalties,
    make_sampling_metadata,
)
from mini_vllm.sample.sampler import ERRORS, LogprobsTensors, Sampler
from mini_vllm.worker.input_batch import CachedRequestState

if TYPE_CHECKING:
    from mini_vllm.worker.recorded_head import RecordedHead


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the sampler has chosen for B rows, in tensors: on the device, or copied to the host."""

    states: list[CachedRequestState]
    token_ids: Tensor
    """``[B]`` int64; negative for a row that failed, see ``ERRORS``."""
    logprobs: LogprobsTensors | None
    """Of all rows, if one of them needs any."""
    named: dict[int, LogprobsTensors]
    """By row, of the tokens that its request has named; ``[1, k + 1]``."""

    def apply(self, function: Callable[[Tensor], Tensor]) -> Drawn:
        """The same with ``function`` of each tensor."""
        return replace(
            self,
            token_ids=function(self.token_ids),
            logprobs=self.logprobs and LogprobsTensors(*map(function, self.logprobs)),
            named={row: LogprobsTensors(*map(function, t)) for row, t in self.named.items()},
        )


@dataclass(frozen=True, slots=True)
class PromptDrawn:
    """Log probabilities of prompt tokens that follow one another, in tensors."""

    req_id: str
    start: int
    tensors: LogprobsTensors

    def apply(self, function: Callable[[Tensor], Tensor]) -> PromptDrawn:
        return replace(self, tensors=LogprobsTensors(*map(function, self.tensors)))


class SampleStep:
    """Samples a token for each row, and remembers the rows' parameters while they stay the same.

    Args:
        device: where the logits are.
        processors: of logits, a user's own; see `sample.custom`.
    """

    def __init__(self, device: torch.device, processors: Sequence[Any] = ()) -> None:
        self.device = device
        self.sampler = CustomSampler(processors) if processors else sampler_of(device)
        self._states: list[CachedRequestState] = []
        self._metadata: SamplingMetadata | None = None
        self._is_plain = False
        """Whether these rows ask for no more than a temperature."""

    def draw(self, states: list[CachedRequestState], logits: Tensor) -> Drawn:
        """Choose the next token of every row. Nothing waits for the device.

        Args:
            states: of the B rows.
            logits: ``[B, V]``, any float dtype.
        """
        metadata = self.metadata_of(states, logits.shape[1])
        sampled = self.sampler(logits, self._without_bad_words(states, metadata, logits.shape[1]))
        token_ids = sampled.sampled_token_ids
        metadata.advance(token_ids)
        named = {
            row: logprobs_of(logits[row], token_ids[row : row + 1], wanted)
            for row, state in enumerate(states)
            if (wanted := state.sampling_params.logprob_token_ids) is not None
        }
        return Drawn(states, token_ids, sampled.logprobs, named)

    def draw_recorded(
        self, states: list[CachedRequestState], head: RecordedHead, hidden: Tensor, rows: Tensor
    ) -> Drawn | None:
        """:meth:`draw` by a replay, from hidden states; None if the rows ask for more than is
        recorded.

        Args:
            hidden: ``[T, H]``.
            rows: ``[B]`` int64, the B rows' last tokens among the T.
        """
        if not self._are_the_same(states):
            if self.looks_back(states):
                return None  # not all that it looks back at need be known yet
            self.metadata_of(states, head.vocab_size)
        metadata = self._metadata
        if metadata is None or not self._is_plain:
            return None
        token_ids = head.draw(hidden, rows, metadata)
        if token_ids is None:
            return None
        metadata.advance(token_ids)
        return Drawn(states, token_ids, None, {})

    def looks_back(self, states: list[CachedRequestState]) -> bool:
        """Whether :meth:`draw` will read output tokens of these rows on the host, the newest too.

        Bad words and a user's own processors do in each step. Penalties keep count on the device,
        and read the output only when other rows are sampled than in the step before.
        """
        if isinstance(self.sampler, CustomSampler):
            return True
        params = [state.sampling_params for state in states]
        if any(p.bad_words_token_ids for p in params):
            return True
        return any(map(has_penalties, params)) and not self._are_the_same(states)

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
        rows, token_ids = on_device(torch.tensor(pairs), self.device).unbind(1)
        no = torch.zeros((), dtype=torch.bool, device=self.device)
        allowed = allowed.index_put((rows, token_ids), no)
        return replace(metadata, allowed=allowed)

    def metadata_of(self, states: list[CachedRequestState], vocab_size: int) -> SamplingMetadata:
        """Per-row sampling parameters, kept while the same requests are sampled step after step.

        The same requests, not the same ids: an id may come back as another request.
        """
        same = self._are_the_same(states)
        is_custom = isinstance(self.sampler, CustomSampler)
        if self._metadata is None or not same:
            rows = [sampling_row(state) for state in states]
            if is_custom:
                self.sampler.rows_changed(rows)
            self._metadata = make_sampling_metadata(rows, vocab_size, self.device)
            self._states = states
            self._is_plain = self._metadata.is_plain and not any(
                row.params.bad_words_token_ids or row.params.logprob_token_ids is not None
                for row in rows
            )
        elif is_custom:
            self.sampler.rows_stayed()
        return self._metadata

    def _are_the_same(self, states: list[CachedRequestState]) -> bool:
        return len(states) == len(self._states) and all(
            now is before for now, before in zip(states, self._states, strict=True)
        )


def sampler_of(device: torch.device) -> Sampler:
    """The sampler of a device: with kernels where they run."""
    if not can_launch_on(device):
        return Sampler()
    from mini_vllm.sample.kernel_sampler import KernelSampler  # a CPU loads no launchers for it

    return KernelSampler()


def report_drawn(drawn: Drawn, token_ids: list[int], result: ModelRunnerOutput) -> None:
    """Write into ``result`` what was sampled, or why nothing was.

    Args:
        drawn: on the host.
        token_ids: ``drawn.token_ids`` as a list.
    """
    entries = logprob_entries(drawn.logprobs) if drawn.logprobs else []
    for index, (state, token_id) in enumerate(zip(drawn.states, token_ids, strict=True)):
        if token_id < 0:
            result.failed[state.req_id] = ERRORS[token_id]
            continue
        result.sampled_token_ids[state.req_id] = [token_id]
        if index in drawn.named:
            result.logprobs[state.req_id] = logprob_entries(drawn.named[index])
        elif (num_logprobs := state.sampling_params.logprobs) is not None:
            result.logprobs[state.req_id] = [entries[index].top(num_logprobs)]


def report_prompts(prompts: Sequence[PromptDrawn], result: ModelRunnerOutput) -> None:
    """Write into ``result`` the log probabilities of prompts, which are on the host."""
    for one in prompts:
        entries = logprob_entries(one.tensors)
        result.prompt_logprobs[one.req_id] = PromptLogprobs(one.start, entries)


def tokens_to_avoid(
    words: Sequence[Sequence[int]], output_token_ids: Sequence[int]
) -> Iterator[int]:
    """The last token of each word whose other tokens are the end of the output."""
    for *before, last in words:
        start = len(output_token_ids) - len(before)
        if start >= 0 and list(output_token_ids[start:]) == before:
            yield last


def logprobs_of(logits: Tensor, token_id: Tensor, named: Sequence[int]) -> LogprobsTensors:
    """Log probabilities of the sampled token and of the named ones, by one row of logits.

    Args:
        logits: ``[V]``.
        token_id: ``[1]`` int64, on the same device; a negative one stands for a failure.

    Source: vllm/v1/sample/sampler.py#L146-L206 (Sampler.gather_specific_token_logprobs) @ v0.22.1
    """
    logprobs = logits.float().log_softmax(dim=-1)
    wanted = torch.cat((token_id.clamp(min=0), on_device(torch.tensor(named), logits.device)))
    chosen = logprobs[wanted]
    rank = (logprobs >= chosen[0]).sum()
    return LogprobsTensors(wanted[None], chosen[None], rank[None])


def sampling_row(state: CachedRequestState) -> SamplingRow:
    eos = () if state.eos_token_id is None else (state.eos_token_id,)
    return SamplingRow(state.sampling_params, state.prompt_token_ids, state.output_token_ids, eos)


def logprob_entries(tensors: LogprobsTensors) -> list[LogprobsEntry]:
    columns = (column.tolist() for column in tensors)
    return [LogprobsEntry(*row) for row in zip(*columns, strict=True)]
