"""What the engine's own loop hands to `mini_vllm.engine.step.step` as its scheduler."""

from __future__ import annotations

from collections.abc import Callable

from mini_vllm.core.scheduler_output import (
    EngineCoreOutput,
    GrammarOutput,
    ModelRunnerOutput,
    SchedulerOutput,
)
from mini_vllm.engine.batch_queue import Batch


class Turn:
    """The scheduler of one step, with all that the engine does around its calls.

    Args:
        has_requests: the scheduler's.
        plan_step: make the next plan, and record it.
        masks: what grammars let through in a plan.
        take_in: end a step with what its forward pass has brought.
    """

    def __init__(
        self,
        has_requests: Callable[[], bool],
        plan_step: Callable[[], Batch],
        masks: Callable[[SchedulerOutput], GrammarOutput | None],
        take_in: Callable[[Batch, ModelRunnerOutput], list[EngineCoreOutput]],
    ) -> None:
        self.has_requests = has_requests
        self._plan_step, self._masks, self._take_in = plan_step, masks, take_in

    def schedule(self) -> SchedulerOutput:
        self._batch = self._plan_step()
        return self._batch.plan.without_padding()

    def get_grammar_bitmask(self, plan: SchedulerOutput) -> GrammarOutput | None:
        return self._masks(self._batch.plan)

    def update_from_output(
        self, plan: SchedulerOutput, result: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        return self._take_in(self._batch, result)
