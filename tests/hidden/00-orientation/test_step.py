"""Turns of the loop that are drawn: what is asked, in which order, and what is told."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
few = settings(many, max_examples=15)
STEP = "mini_vllm.engine.step:step"
CALLS = ("schedule", "execute_model", "get_grammar_bitmask", "sample_tokens", "result",
         "update_from_output")  # fmt: skip
ERRORS = ("ValueError", "KeyError", "TimeoutError", "RuntimeError", "OSError", "IndexError")

one_step = st.fixed_dictionaries(
    {
        "tokens": st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), max_size=3),
        "masks": st.booleans(),
        "samples": st.booleans(),
        "outputs": st.lists(st.integers(0, 9), max_size=3),
    }
)


def questions(number: int, masks: int | None) -> list[list[Any]]:
    """Those of one turn, in their order."""
    return [
        ["schedule"],
        ["execute_model", number],
        ["get_grammar_bitmask", number],
        ["sample_tokens", masks],
        ["update_from_output", number, number],
    ]


def take_turns(subject: Any, steps: list[Any], turns: int, idle: list[int]) -> list[Any]:
    """What each turn returned, and all that was asked."""
    p = Program()
    script = p.new("labkit.inside.loop:Script", steps, idle)
    for _ in range(turns):
        p.see(script.turn(p.name(STEP)))
    p.see(script.log)
    return list(subject.run(p))


@many
@given(steps=st.lists(one_step, max_size=4), idle=st.sets(st.integers(0, 4), max_size=2))
def test_00_5_any_turns(subject: Any, steps: list[Any], idle: set[int]) -> None:
    """Plans with and without tokens, masks and results; turns without requests among them."""
    turns = len(steps) + len(idle) + 1
    told, asked, left, num_masks = [], [], list(enumerate(steps)), 0
    for question in range(turns):
        if question in idle or not left:
            told.append([])
            continue
        number, script = left.pop(0)
        asked += questions(number, num_masks if script["masks"] else None)
        num_masks += script["masks"]
        told.append(script["outputs"])
    assert take_turns(subject, steps, turns, sorted(idle)) == [*told, asked]


@few
@given(steps=st.lists(one_step, min_size=1, max_size=2))
def test_00_5_answers_that_come_late(subject: Any, steps: list[Any]) -> None:
    """The future has no result yet when it is handed out."""
    late = [script | {"late": True, "masks": False} for script in steps]
    told = [script["outputs"] for script in steps]
    asked = [each for number in range(len(steps)) for each in questions(number, None)]
    assert take_turns(subject, late, len(steps), []) == [*told, asked]


@few
@given(script=one_step, fails=st.permutations([(w, e) for w in CALLS for e in ERRORS]))
def test_00_5_any_error(subject: Any, script: Any, fails: list[tuple[str, str]]) -> None:
    """Each is raised as it is, nothing is asked after it, and the next turn is one like any."""
    whole = script | {"masks": False}
    steps = [*(whole | {"fails": each} for each in fails), whole]
    *failed, told, asked = take_turns(subject, steps, len(steps), [])
    wanted = []
    for number, (where, error) in enumerate(fails):
        message = f"{where} failed"
        assert failed[number] == [error, repr(message) if error == "KeyError" else message]
        stop = 4 if where == "result" else min(CALLS.index(where) + 1, 5)
        wanted += questions(number, None)[:stop]
    assert asked == wanted + questions(len(fails), None)
    assert told == script["outputs"]


@many
@given(
    wanted=st.dictionaries(
        st.sampled_from(["ada", "ben", "cyd", "dan"]),
        st.tuples(st.integers(1, 20), st.integers(1, 8)),
        min_size=1,
    ),
    num_blocks=st.integers(9, 20),
    budget=st.integers(4, 12),
    rows=st.integers(1, 4),
)
def test_00_5_the_courses_scheduler(
    subject: Any, reference: Any, wanted: Any, num_blocks: int, budget: int, rows: int
) -> None:
    """Requests of any length, chunks, and a pool in which some are preempted: the same plans and
    the same outputs, step by step."""
    p = Program()
    engine = p.new(
        "labkit.inside.loop:CountingEngine",
        wanted,
        num_blocks,
        max_num_batched_tokens=budget,
        max_num_seqs=rows,
    )
    p.see(engine.run(p.name(STEP)))
    p.see(engine.worked)
    told, worked = subject.run(p)
    assert [told, worked] == reference.run(p)
    tokens = {name: [] for name in wanted}
    for outputs in told:
        for name, new, _ in outputs:
            tokens[name] += new
    assert tokens == {name: list(range(1, output + 1)) for name, (_, output) in wanted.items()}
