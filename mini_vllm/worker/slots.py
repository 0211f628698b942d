"""Where later features plug into the runner: named slots, empty unless a feature is on.

They are called in one order that can be read in
:meth:`~mini_vllm.worker.runner_frame.RunnerFrame.execute_model`. A list of hooks would hide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.worker.input_batch import CachedRequestState
from mini_vllm.worker.sample_step import SampleStep
from mini_vllm.worker.step_inputs import StepInputs


class Images(Protocol):
    """Encodes the images of a step and mixes them into its embeddings."""

    num_encoded: int

    def update(self, plan: SchedulerOutput) -> None:
        """Forget what the scheduler has freed, then encode what it has scheduled."""

    def apply(self, inputs: StepInputs, result: ModelRunnerOutput) -> None:
        """Put embeddings and positions of images into the step; requests whose image cannot be
        used go to ``failed``."""

    def keep(self, result: ModelRunnerOutput) -> None:
        """The step is done: keep what it has encoded, but not for requests that failed."""

    def restart(self) -> None:
        """Forget all encodings: an interrupted step was undone."""


class Adapters(Protocol):
    """Tells the layers which adapter each token uses."""

    def prepare_capture(self) -> None:
        """Let the layers launch their kernels although no token has an adapter."""

    def map(self, inputs: StepInputs, result: ModelRunnerOutput) -> None:
        """Write the token-to-slot mapping; requests that cannot be served go to ``failed``."""


class Pipeline(Protocol):
    """Takes over from the stage before, and hands on to the next."""

    def receive(self, num_tokens: int) -> dict[str, Any]:
        """What the model is called with besides its inputs; waits for it."""

    def hand_on(self, result: Any) -> Tensor | None:
        """Hidden states of the last stage; what another returns goes to the next one."""


class Connector(Protocol):
    """Moves KV in and out of the cache around a forward pass."""

    def begin(self, plan: SchedulerOutput) -> None:
        """Save what preemption is about to free, start loads; also for a plan without tokens."""

    def end(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """Wait for saves, and report in ``result`` what has arrived, left or failed."""


class Pooling(Protocol):
    """Makes an embedding or probabilities of prompts, in the place of next tokens."""

    def update(self, plan: SchedulerOutput) -> None:
        """Add new requests, and forget those that have ended."""

    def pool(self, inputs: StepInputs, hidden: Tensor, result: ModelRunnerOutput) -> None:
        """Report the prompts that this step completes in ``pooler_output``."""

    def restart(self, req_ids: Sequence[str]) -> None:
        """An interrupted step was undone: all requests, these only, begin anew."""


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
