"""Task 00.5: one turn of the loop."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.inside.loop import CountingEngine, Script
from labkit.testing import expect
from mini_vllm.engine.step import step

WHOLE = [["schedule"], ["execute_model", 0], ["get_grammar_bitmask", 0], ["sample_tokens", None],
         ["update_from_output", 0, 0]]  # fmt: skip
NUMBERS = "(a number is that of the step in which the plan, the masks or the result was made)"


def steps_of(tokens: dict[str, int] | None = None, **more: Any) -> Script:
    """One step, as a script."""
    return Script([{"tokens": {"tea": 3} if tokens is None else tokens, **more}])


def test_00_5_without_requests_nothing_is_asked() -> None:
    """No requests: an empty list, and neither a plan nor a forward pass."""
    idle = Script([])
    expect(idle.turn(step), [], at="what step returns without requests")
    expect(idle.log, [], at="what it asked for")


def test_00_5_schedule_run_update() -> None:
    """The three moves in their order, and the masks while the forward pass runs."""
    script = steps_of()
    script.turn(step)
    expect(script.log, WHOLE, at=f"the questions of one step {NUMBERS}")


def test_00_5_what_clients_are_told_is_returned() -> None:
    """The outputs of update_from_output are those of the step."""
    script = steps_of(outputs=["tea has a token"])
    expect(script.turn(step), ["tea has a token"], at="what step returns")


def test_00_5_the_masks_go_to_the_sampler() -> None:
    """What the grammars let through is what sample_tokens gets."""
    script = steps_of(masks=True)
    script.turn(step)
    expect(script.log, [*WHOLE[:3], ["sample_tokens", 0], WHOLE[4]], at=f"the questions {NUMBERS}")


def test_00_5_the_answer_is_waited_for() -> None:
    """sample_tokens returns a future: the result is in it when the device is done."""
    script = steps_of(late=True)
    script.turn(step)
    at = f"the questions of a step whose answer comes 20 ms later {NUMBERS}"
    expect(script.log, WHOLE, at=at)


def test_00_5_a_plan_without_tokens_is_run_as_well() -> None:
    """It tells the workers which requests have finished."""
    script = steps_of(tokens={})
    script.turn(step)
    expect(script.log, WHOLE, at=f"the questions of a step without tokens {NUMBERS}")


def test_00_5_one_step_is_one_turn() -> None:
    """Further steps are for further calls, each with a plan of its own."""
    script = Script([{"tokens": {"tea": 3}}, {"tokens": {"tea": 1}, "masks": True}])
    script.turn(step)
    expect(script.log, WHOLE, at=f"the questions of the first of two steps {NUMBERS}")
    script.turn(step)
    second = [["schedule"], ["execute_model", 1], ["get_grammar_bitmask", 1], ["sample_tokens", 0],
              ["update_from_output", 1, 1]]  # fmt: skip
    expect(script.log[5:], second, at="the questions of the second step")


@pytest.mark.parametrize("where", ["schedule", "execute_model", "result", "update_from_output"])
def test_00_5_what_fails_is_told(where: str) -> None:
    """An error is raised on. The caller knows what to undo; a second try would run a plan twice."""
    script = steps_of(fails=(where, "ValueError"))
    expect(script.turn(step), ["ValueError", f"{where} failed"], at=f"a step whose {where} fails")
    asked = [name for name, *_ in script.log]
    expect(len(asked), len(set(asked)), at=f"each is asked once at most; asked were {asked}")


def test_00_5_seven_steps_for_the_fox() -> None:
    """The course's own scheduler: 10 tokens of prompt, 5 of output, 4 tokens a step.

    One step more tells the workers that the fox has finished.
    """
    engine = CountingEngine(
        {"fox": (10, 5)}, num_blocks=17, max_num_batched_tokens=4, max_num_seqs=4
    )
    told = engine.run(step)
    ends = [["fox", [token], None] for token in range(1, 5)] + [["fox", [5], "length"]]
    expect(told, [[], [], *([end] for end in ends), []], at="outputs of each step")
    work = [{"fox": n} for n in (4, 4, 2, 1, 1, 1, 1)]
    expect(engine.worked, [*work, {}], at="tokens of each plan that was executed")
