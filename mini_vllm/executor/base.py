"""The engine's side of its workers: one object, however many of them there are and wherever.

::

    EngineCore ── execute_model(plan) ──►  every worker starts its forward pass
               ── sample_tokens(masks) ─►  the last one samples  ──► Future[ModelRunnerOutput]

A step is two calls, so that the engine can prepare the grammars' masks while the forward pass
runs. There is one answer, that of the second call.

Source: vllm/v1/executor/abstract.py#L37-L306 (Executor) @ v0.22.1
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any

from mini_vllm.core.scheduler_output import GrammarOutput, ModelRunnerOutput, SchedulerOutput


class Executor(ABC):
    """Runs methods of :class:`~mini_vllm.worker.worker.Worker` on every rank."""

    max_concurrent_batches = 1
    """Plans that may be on their way at once: as many as there are pipeline stages."""

    @abstractmethod
    def call(self, method: str, *args: Any, timeout: float | None = None) -> list[Any]:
        """Call ``method(*args)`` on every worker; the answers, in order of rank.

        Source: vllm/v1/executor/abstract.py#L153-L202 (Executor.collective_rpc) @ v0.22.1
        """

    @abstractmethod
    def execute_model(self, plan: SchedulerOutput) -> None:
        """Start the forward pass of ``plan``. There is no answer; :meth:`sample_tokens` has it."""

    @abstractmethod
    def sample_tokens(self, masks: GrammarOutput | None) -> Future[ModelRunnerOutput]:
        """Sample from the logits of the plan that was started first and not sampled from yet.

        Args:
            masks: which tokens grammars let through; None if nobody has one.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Let go of the workers. May be called twice."""
