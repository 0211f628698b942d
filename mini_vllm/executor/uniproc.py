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
from mini_vllm.executor.base import Executor, Method, run_method
from mini_vllm.executor.worker import Worker

logger = logging.getLogger(__name__)


class LoneWorker:
    """The two halves of a step on a worker that is alone.

    What fails ends the requests of that step only: there is no other rank that could have got
    out of step.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._plan: SchedulerOutput | None = None
        self._failure: str | None = None

    def execute_model(self, plan: SchedulerOutput) -> None:
        self._plan, self._failure = plan, None
        self._try(lambda: self.worker.execute_model(plan))

    def sample_tokens(self, masks: GrammarOutput | None) -> ModelRunnerOutput:
        assert self._plan is not None, "execute_model comes first"
        if self._failure is None:
            result = self._try(lambda: self.worker.sample_tokens(masks))
        if self._failure is not None:
            failed = dict.fromkeys(self._plan.num_scheduled_tokens, self._failure)
            result = ModelRunnerOutput(
                failed=failed, kv_connector_output=self.worker.take_kv_report()
            )
        return result

    def _try(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except Exception as error:
            logger.exception("the forward pass failed; its requests end with an error")
            self._failure = f"the forward pass failed: {error}"


class UniProcExecutor(Executor):
    """Calls its worker directly."""

    def __init__(self, config: EngineConfig) -> None:
        self.worker = Worker(config)
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
        answer: Future[ModelRunnerOutput] = Future()
        answer.set_result(self._steps.sample_tokens(masks))
        return answer

    def shutdown(self) -> None:
        self.worker.shutdown()
