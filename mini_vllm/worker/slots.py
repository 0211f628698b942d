"""The runner's slot for speculation: :mod:`mini_vllm.spec_decode` is on a floor above the worker,
and cannot be imported here.

The runner calls it in the one order that
:meth:`~mini_vllm.worker.runner_frame.RunnerFrame.execute_model` shows.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.worker.input_batch import CachedRequestState
from mini_vllm.worker.sample_step import SampleStep
from mini_vllm.worker.step_inputs import StepInputs


class Speculator(Protocol):
    """Has drafts verified, and guesses the next ones."""

    @property
    def has_drafts(self) -> bool:
        """Whether the step in progress has drafts to verify."""

    def write_drafts(self, plan: SchedulerOutput) -> None:
        """Put the plan's drafts behind each row's tokens, without counting them."""

    def spread_rows(self, plan: SchedulerOutput, inputs: StepInputs) -> None:
        """Ask for the logits of m + 1 tokens of each request with m drafts, not only the last."""

    def verify(
        self,
        sample_step: SampleStep,
        states: list[CachedRequestState],
        logits: Tensor,
        result: ModelRunnerOutput,
    ) -> Tensor:
        """Tokens ``[B, K + 1]`` from the spread rows' logits; -1 behind each request's last."""

    def propose(
        self, plan: SchedulerOutput, inputs: StepInputs, hidden: Tensor, result: ModelRunnerOutput
    ) -> dict[str, list[int]]:
        """Drafts for the next step, by request."""

    def scrub(self) -> None:
        """A request has failed: replace NaN and infinities by 0 in what is kept of it."""
