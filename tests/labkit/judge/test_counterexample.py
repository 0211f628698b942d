"""What `grade --reveal` shows of a hidden test: calls, answers, and what was expected."""

from __future__ import annotations

from labkit.inside.program import Program
from labkit.judge import counterexample
from labkit.process.worker import PROGRAM, TRACE


def shown(program: Program, seen: list[object], expected: list[object]) -> list[str]:
    asked = {"steps": program.steps}
    text = counterexample.text(PROGRAM, asked, seen, expected, program.refusals)
    return text.splitlines()


def test_beside_each_answer_stands_what_was_expected() -> None:
    p = Program()
    queue = p.new("toy.queue:Queue", 4)
    p.see(queue.head)
    p.see(queue.size)
    assert shown(p, [7, 3], [9, 3]) == [
        "v1 = queue.Queue(4)",
        "v1.head  # yours: 7; expected: 9",
        "v1.size  # yours: 3, as expected",
    ]


def test_of_a_long_table_the_first_difference_is_shown() -> None:
    p = Program()
    p.see(p.call("toy.queue:table"))
    table = [[0] * 256 for _ in range(20)]
    other = [*table[:3], [0] * 5 + [1] + [0] * 250, *table[4:]]
    lines = shown(p, [other], [table])
    assert lines[-1] == "#   item [3][5] is 1, expected 0"
    assert max(map(len, lines)) < 200


def test_what_was_not_raised_is_told_as_what_was_returned() -> None:
    p = Program()
    p.refuse("ValueError", p.name("toy.queue:pop"), 0)
    assert shown(p, [{"!returned": 5}], []) == [
        "queue.pop(0)  # must raise ValueError",
        "# yours returned 5; expected ValueError",
    ]


def test_of_a_trace_the_first_step_that_differs() -> None:
    lines = [{"step": 0, "scheduled": {"r0": 4}}, {"step": 1, "scheduled": {"r0": 1}}]
    other = [lines[0], {"step": 1, "scheduled": {"r0": 2}}]
    text = counterexample.text(TRACE, {"trace": {"events": []}}, other, lines)
    assert text.splitlines()[1].startswith("step 1  # yours: {'step': 1, 'scheduled': {'r0': 2}}")
