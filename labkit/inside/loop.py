"""What a step of the engine's loop asks for: a script that notes every question, and a small engine
with the course's scheduler and a model that counts."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

LATE_SECONDS = 0.02
"""After which a model answers that is not done at once."""
MOST_STEPS = 500


class Answer(Future[Any]):
    """What a model will say. It is later than the first limit, however long that is."""

    is_late = True

    def result(self, timeout: float | None = None) -> Any:
        if timeout is not None and self.is_late:
            self.is_late = False
            raise TimeoutError(f"no result in {timeout:g} s; a step takes as long as it takes")
        return super().result(timeout)


class Script:
    """Scheduler and executor of some steps that are written down before.

    Args:
        steps: of each step: `tokens` by request; `masks`, whatever it is; `late`, whether the
            model's answer comes later; `fails`, a call and the error that it raises, by name;
            `outputs`.
        idle: at which of the questions there are no requests.
    """

    def __init__(self, steps: Sequence[dict[str, Any]], idle: Sequence[int] = ()) -> None:
        self.steps, self.idle = list(steps), set(idle)
        self.log: list[list[Any]] = []
        self.questions = 0
        self.plans: list[Any] = []
        self.results: list[Any] = []
        self.masks: list[Any] = []

    def turn(self, step: Callable[[Any, Any], Any]) -> Any:
        """What a step returns, or the error that it raises, by name and message; but a TODO that is
        still open is raised."""
        try:
            return step(self, self)
        except NotImplementedError:
            raise
        except Exception as error:
            return [type(error).__name__, str(error)]

    def _note(self, call: str, *values: Any) -> dict[str, Any]:
        if len(self.log) > 100 * MOST_STEPS:
            raise RuntimeError("the step never ends")
        self.log.append([call, *values])
        script = self.steps[max(len(self.plans) - 1, 0)] if self.steps else {}
        if call in script.get("fails", ()):
            where, error = script["fails"]
            raise getattr(builtins, error)(f"{where} failed")
        return script

    def _number(self, kept: list[Any], value: Any) -> int | str:
        """Which plan, result or masks a value is; they are known by identity."""
        for number, one in enumerate(kept):
            if one is value:
                return number
        return type(value).__name__

    def has_requests(self) -> bool:
        self.questions += 1
        return self.questions - 1 not in self.idle and len(self.plans) < len(self.steps)

    def schedule(self) -> Any:
        from mini_vllm.core.scheduler_output import CachedRequestData, SchedulerOutput

        if len(self.plans) == len(self.steps):
            raise RuntimeError("schedule was asked once more than there are steps")
        tokens = dict(self.steps[len(self.plans)]["tokens"])
        cached = CachedRequestData(list(tokens), [0] * len(tokens), set(), {})
        total = sum(tokens.values())
        self.plans.append(SchedulerOutput([], cached, tokens, total, {}, {}, [], set()))
        self._note("schedule")
        return self.plans[-1]

    def execute_model(self, plan: Any) -> None:
        self._note("execute_model", self._number(self.plans, plan))

    def get_grammar_bitmask(self, plan: Any) -> Any:
        from mini_vllm.core.scheduler_output import GrammarOutput

        script = self._note("get_grammar_bitmask", self._number(self.plans, plan))
        if not script.get("masks"):
            return None
        self.masks.append(GrammarOutput({}, b""))
        return self.masks[-1]

    def sample_tokens(self, masks: Any) -> Future[Any]:
        from mini_vllm.core.scheduler_output import ModelRunnerOutput

        number = None if masks is None else self._number(self.masks, masks)
        script = self._note("sample_tokens", number)
        tokens = {name: [7] for name in self.plans[-1].num_scheduled_tokens}
        self.results += [None] * (len(self.plans) - 1 - len(self.results))  # of steps that failed
        self.results.append(ModelRunnerOutput(tokens if script.get("samples", True) else {}))
        answer = Answer()
        where, error = script.get("fails", ("", ""))

        def arrive(result: Any = self.results[-1]) -> None:
            if where == "result":
                answer.set_exception(getattr(builtins, error)("result failed"))
            else:
                answer.set_result(result)

        if script.get("late") and sys.platform != "emscripten":  # a browser's tab has no threads
            threading.Timer(LATE_SECONDS, arrive).start()
        else:
            arrive()
        return answer

    def update_from_output(self, plan: Any, result: Any) -> Any:
        numbers = self._number(self.plans, plan), self._number(self.results, result)
        return self._note("update_from_output", *numbers).get("outputs", [])


class CountingEngine:
    """The course's scheduler, and a model that says 1, 2, 3 … to each request.

    Args:
        wanted: by name, tokens of prompt and of output; all come at once.
        limits: of :class:`~mini_vllm.config.SchedulerConfig`.
    """

    def __init__(self, wanted: dict[str, tuple[int, int]], num_blocks: int, **limits: Any) -> None:
        from mini_vllm.config import CacheConfig, SchedulerConfig
        from mini_vllm.core.scheduler import Scheduler
        from mini_vllm.request import Request
        from mini_vllm.sampling_params import SamplingParams

        config = SchedulerConfig(max_model_len=64, **limits)
        self.scheduler = Scheduler(config, CacheConfig(4, num_blocks), (), b"root")
        self.requests = {}
        for number, (name, (prompt, output)) in enumerate(wanted.items()):
            params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
            tokens = range(100 * number + 100, 100 * number + 100 + prompt)
            self.requests[name] = Request(name, tokens, params, arrival_time=float(number))
            self.scheduler.add_request(self.requests[name])
        self.has_requests, self.schedule = self.scheduler.has_requests, self.scheduler.schedule
        self.worked: list[dict[str, int]] = []
        """Of each plan that was executed, its tokens by request."""

    def get_grammar_bitmask(self, plan: Any) -> None:
        return None

    def execute_model(self, plan: Any) -> None:
        self.worked.append(dict(plan.num_scheduled_tokens))

    def sample_tokens(self, masks: Any) -> Future[Any]:
        from mini_vllm.core.scheduler_output import ModelRunnerOutput

        sampled = {
            name: [self.requests[name].num_output_tokens + 1]
            for name in self.worked[-1]
            if self.requests[name].num_computed_tokens == self.requests[name].num_tokens
        }
        answer: Future[Any] = Future()
        answer.set_result(ModelRunnerOutput(sampled))
        return answer

    def update_from_output(self, plan: Any, result: Any) -> Any:
        from mini_vllm.core.finish_step import finish_step

        return finish_step(self.scheduler, plan, result)

    def run(self, step: Callable[[Any, Any], Any]) -> list[list[Any]]:
        """Step to the end: of each step, what was told: request, tokens, reason of its end."""
        told: list[list[Any]] = []
        while self.has_requests():
            if len(told) == MOST_STEPS:
                raise RuntimeError(f"after {MOST_STEPS} steps there are still requests")
            told.append(
                [[o.request_id, list(o.new_token_ids), o.finish_reason] for o in step(self, self)]
            )
        return told
