"""One worker, in this process.

Source: vllm/v1/executor/uniproc_executor.py#L45-L143 (UniProcExecutor) @ v0.22.1
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from mini_vllm.config import EngineConfig
from mini_vllm.core.scheduler_output import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from mini_vllm.errors import EngineDeadError, RequestFailure
from mini_vllm.executor.base import Executor, Method, most_batches, run_method
from mini_vllm.executor.worker import Worker
from mini_vllm.worker.late_results import LateOutput

logger = logging.getLogger(__name__)


class LateAnswer(Future[ModelRunnerOutput]):
    """The answer to a step that may still run.

    Args:
        is_there: whether ``take`` would return at once.
        take: waits for the answer.
    """

    def __init__(self, is_there: Callable[[], bool], take: Callable[[], ModelRunnerOutput]) -> None:
        super().__init__()
        self._is_there, self._take = is_there, take

    def done(self) -> bool:
        return super().done() or self._is_there()

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        """The answer, whenever it comes; ``timeout`` changes nothing."""
        if not super().done():
            self.set_result(self._take())
        return super().result()


class LoneWorker:
    """The two halves of a step on a worker that is alone.

    What fails ends the requests of that step only: there is no other rank that could have got
    out of step. But if the device itself is lost, the engine is dead.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._plan: SchedulerOutput | None = None
        self._failure: str | None = None

    def execute_model(self, plan: SchedulerOutput) -> None:
        self._plan, self._failure = plan, None
        try:
            self.worker.execute_model(plan)
        except Exception as error:
            self._failure = self._reason(error)

    def sample_tokens(self, masks: GrammarOutput | None) -> ModelRunnerOutput:
        return self._outcome(self._failure, lambda: self.worker.sample_tokens(masks))

    def sample_tokens_late(self, masks: GrammarOutput | None) -> LateAnswer:
        """The same, for an engine that asks for the answer when the next step was started."""
        plan, failure = self._plan, self._failure
        output: LateOutput | None = None
        if failure is None:
            try:
                output = self.worker.sample_tokens_late(masks)
            except Exception as error:
                failure = self._reason(error)
        if output is None:
            return LateAnswer(lambda: True, lambda: self._failed(plan, failure))
        return LateAnswer(output.done, lambda: self._outcome(None, output.get_output, plan))

    def _outcome(
        self,
        failure: str | None,
        run: Callable[[], ModelRunnerOutput],
        plan: SchedulerOutput | None = None,
    ) -> ModelRunnerOutput:
        """What ``run`` returns, or an answer that says why there is none."""
        if failure is None:
            try:
                return run()
            except Exception as error:
                failure = self._reason(error)
        return self._failed(plan or self._plan, failure)

    def _failed(self, plan: SchedulerOutput | None, failure: str | None) -> ModelRunnerOutput:
        assert plan is not None and failure is not None, "execute_model comes first"
        failed: dict[str, RequestFailure | str] = dict.fromkeys(plan.num_scheduled_tokens, failure)
        return ModelRunnerOutput(failed=failed, kv_connector_output=self.worker.take_kv_report())

    def _reason(self, error: Exception) -> str:
        """Why a step has failed. Raises EngineDeadError if each further one would fail as well."""
        if self.worker.is_lost():
            raise EngineDeadError(
                f"{self.worker.device} no longer responds: {error}; start a new process"
            ) from error
        logger.exception("the forward pass failed; its requests end with an error")
        return f"the forward pass failed: {error}"


class UniProcExecutor(Executor):
    """Calls its worker directly."""

    def __init__(self, config: EngineConfig) -> None:
        self.worker = Worker(config)
        self.gives_late_results = bool(config.scheduler.async_scheduling)
        self.max_concurrent_batches = most_batches(config)
        self._steps = LoneWorker(self.worker)

    def collective_rpc(
        self,
        method: Method,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        return [run_method(self.worker, method, args, kwargs)]

    def execute_model(self, plan: SchedulerOutput) -> None:
        self._steps.execute_model(plan)

    def sample_tokens(self, masks: GrammarOutput | None) -> Future[ModelRunnerOutput]:
        if self.gives_late_results:
            return self._steps.sample_tokens_late(masks)
        answer: Future[ModelRunnerOutput] = Future()
        answer.set_result(self._steps.sample_tokens(masks))
        return answer

    def shutdown(self) -> None:
        self.worker.shutdown()
