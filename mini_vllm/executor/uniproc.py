"""One worker, in this process.

Source: vllm/v1/executor/uniproc_executor.py#L45-L143 (UniProcExecutor) @ v0.22.1
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mini_vllm.config import EngineConfig
from mini_vllm.core.scheduler_output import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from mini_vllm.executor.base import Executor
from mini_vllm.worker.worker import Worker

logger = logging.getLogger(__name__)


class UniProcExecutor(Executor):
    """Calls its worker directly. What fails in a step ends the requests of that step only:
    there is no other rank that could have got out of step."""

    def __init__(self, config: EngineConfig) -> None:
        self.worker = Worker(config)
        self._plan: SchedulerOutput | None = None
        self._failure: str | None = None

    def call(self, method: str, *args: Any, timeout: float | None = None) -> list[Any]:
        return [getattr(self.worker, method)(*args)]

    def execute_model(self, plan: SchedulerOutput) -> None:
        self._plan, self._failure = plan, None
        self._try(lambda: self.worker.execute_model(plan))

    def sample_tokens(self, masks: GrammarOutput | None) -> Future[ModelRunnerOutput]:
        assert self._plan is not None, "execute_model comes first"
        if self._failure is None:
            result = self._try(lambda: self.worker.sample_tokens(masks))
        if self._failure is not None:
            failed = dict.fromkeys(self._plan.num_scheduled_tokens, self._failure)
            result = ModelRunnerOutput(
                failed=failed, kv_connector_output=self.worker.take_kv_report()
            )
        answer: Future[ModelRunnerOutput] = Future()
        answer.set_result(result)
        return answer

    def _try(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except Exception as error:
            logger.exception("the forward pass failed; its requests end with an error")
            self._failure = f"the forward pass failed: {error}"

    def shutdown(self) -> None:
        self.worker.shutdown()
