"""One turn of the engine's loop: schedule, run the model, update.

::

    scheduler   schedule ─► plan ──┐        get_grammar_bitmask          ┌─► update_from_output
    executor                       └► execute_model ········ sample_tokens ─► result
                                      (the forward pass runs)

``EngineCore`` calls :func:`step` whenever one plan at a time is on its way. It hands over its own
scheduler, wrapped so that each call does the engine's bookkeeping as well.

Source: vllm/v1/engine/core.py#L428-L457 (EngineCore.step) @ v0.22.1
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from mini_vllm.core.scheduler_output import (
    EngineCoreOutput,
    GrammarOutput,
    ModelRunnerOutput,
    SchedulerOutput,
)


class Schedules(Protocol):
    """Plans steps, and takes in their results."""

    def has_requests(self) -> bool:
        """Whether there is anything to do, for a request or after one that has ended."""

    def schedule(self) -> SchedulerOutput:
        """The plan of a step, which from then on counts as computed."""

    def get_grammar_bitmask(self, plan: SchedulerOutput) -> GrammarOutput | None:
        """The tokens that grammars let through; None if no request of the plan has one."""

    def update_from_output(
        self, plan: SchedulerOutput, result: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Take in the result of the forward pass of ``plan``; returns the outputs for clients."""


class Executes(Protocol):
    """Runs the model."""

    def execute_model(self, plan: SchedulerOutput) -> None:
        """Start the forward pass of a plan, and return at once."""

    def sample_tokens(self, masks: GrammarOutput | None) -> Future[ModelRunnerOutput]:
        """Sample from the plan that was started; a future that has the tokens."""


def step(scheduler: Schedules, executor: Executes) -> list[EngineCoreOutput]:
    """Schedule, run the model and update, each once.

    1. If the scheduler has no requests, there is nothing to do: return ``[]``, and ask for nothing
       else.
    2. Let it make a plan, and start the plan's forward pass. A plan without tokens is started, too:
       it reports finished requests to the workers.
    3. Masks of grammars are made while the forward pass runs, so after it was started. Sampling
       gets them.
    4. Wait for the result, and let the scheduler take it in.

    What any of them raises is raised on; nothing of the step is tried again.

    Returns:
        What ``update_from_output`` returns.

    Source: vllm/v1/engine/core.py#L428-L457 (EngineCore.step) @ v0.22.1
    """
    if not scheduler.has_requests():
        return []
    plan = scheduler.schedule()
    executor.execute_model(plan)
    answer = executor.sample_tokens(scheduler.get_grammar_bitmask(plan))
    return scheduler.update_from_output(plan, answer.result())
