"""The engine's side of its workers: one object, however many workers there are, on any machine.

::

    EngineCore ── execute_model(plan) ──►  every worker starts its forward pass
               ── sample_tokens(masks) ─►  the last stage samples ──► Future[ModelRunnerOutput]

A step is two calls, so that the engine can prepare the grammars' masks while the forward pass
runs. There is one answer, that of the second call.

Source: vllm/v1/executor/abstract.py#L37-L306 (Executor) @ v0.22.1
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from mini_vllm.config import EngineConfig
from mini_vllm.core.scheduler_output import GrammarOutput, ModelRunnerOutput, SchedulerOutput

GRACE_SECONDS = 5.0
"""A step may last this much longer than an exchange in it, whose own error says more."""


class WorkerFunction(Protocol):
    """A function whose first argument is the worker."""

    def __call__(self, worker: Any, /, *args: Any, **kwargs: Any) -> Any: ...


Method = str | WorkerFunction
"""A method of the worker by name, or a function whose first argument is the worker."""


class Executor(ABC):
    """Runs methods of :class:`~mini_vllm.executor.worker.Worker` on every rank."""

    max_concurrent_batches = 1
    """Plans that may be on their way at once; see :func:`most_batches`."""

    @abstractmethod
    def collective_rpc(
        self,
        method: Method,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call ``method`` on every worker; the answers, in order of rank.

        Raises:
            Exception: what it raised on the lowest rank that failed; the engine goes on.
            TimeoutError: if a worker has not answered within ``timeout`` seconds.
            EngineDeadError: if a worker is gone.

        Source: vllm/v1/executor/abstract.py#L153-L202 (Executor.collective_rpc) @ v0.22.1
        """

    def call(self, method: str, *args: Any) -> list[Any]:
        """:meth:`collective_rpc`, as the engine itself mostly uses it."""
        return self.collective_rpc(method, args=args)

    @abstractmethod
    def execute_model(self, plan: SchedulerOutput) -> None:
        """Start the forward pass of ``plan``. There is no answer; :meth:`sample_tokens` has it."""

    @abstractmethod
    def sample_tokens(self, masks: GrammarOutput | None) -> Future[ModelRunnerOutput]:
        """Sample from the logits of the plan that was started first and not sampled from yet.

        Args:
            masks: which tokens grammars let through; None if no request has one.
        """

    def register_failure_callback(self, callback: Callable[[str], None]) -> None:  # noqa: B027
        """Have ``callback(reason)`` called, in any thread, when a worker is gone; at once if it is.

        Also between two steps, when no call waits for it. A worker in this process ends with the
        engine, and nothing is called.

        Source: vllm/v1/executor/abstract.py#L37-L306 (Executor.register_failure_callback)
        @ v0.22.1
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Let go of the workers. May be called twice."""


def most_batches(config: EngineConfig) -> int:
    """Plans that may be on their way at once: one for each pipeline stage, and with late results
    one that computes and one that waits for it.

    Source: vllm/v1/executor/uniproc_executor.py#L76-L78 (UniProcExecutor.max_concurrent_batches)
    @ v0.22.1
    """
    with_late_results = 2 if config.scheduler.async_scheduling else 1
    return max(config.parallel.pipeline_parallel_size, with_late_results)


def run_method(
    worker: Any, method: Method, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> Any:
    """Call a method of ``worker`` by name, or a function with ``worker`` as its first argument.

    Source: vllm/v1/serial_utils.py#L481-L511 (run_method) @ v0.22.1
    """
    if isinstance(method, str):
        return getattr(worker, method)(*args, **(kwargs or {}))
    return method(worker, *args, **(kwargs or {}))
