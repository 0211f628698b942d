"""Which function a failing task's screen and hints lead to."""

from __future__ import annotations

import pytest

from labkit.course.manifest import Course, Exercise, Phase
from labkit.course.root import ROOT
from labkit.course.state import State
from labkit.judge import diagnose
from labkit.judge.public import PhaseResult
from labkit.judge.public import Test as Judged
from labkit.judge.suspects import by_suspicion, calls_of, place_to_edit, root_of
from labkit.learner.commands import current_task, function_at
from tests.labkit.learner.test_commands import says, screen
from tests.labkit.toy_course import lab, rewrite, solve


def task_of(course: Course) -> tuple[Phase, Exercise]:
    phase = course.phase("0")
    return phase, phase.exercise("2")


def ran(name: str, outcome: str, *entered: str) -> Judged:
    found = {"entered": [f"toy.fifo:{function}" for function in entered]}
    return Judged(name, name, name, "00.2", outcome, detail=found)


@pytest.mark.parametrize(
    ("others", "order"),
    [
        ([ran("b", "passed", "Fifo.drain")], ["Fifo.head", "Fifo.drain"]),
        ([ran("b", "passed", "Fifo.head")], ["Fifo.drain", "Fifo.head"]),
        ([ran("b", "failed", "Fifo.head")], ["Fifo.head", "Fifo.drain"]),
        ([ran("b", "todo", "Fifo.drain")], ["Fifo.drain", "Fifo.head"]),
        ([], ["Fifo.drain", "Fifo.head"]),
    ],
    ids=["drain passed elsewhere", "head did", "head fails elsewhere", "a hole", "nothing known"],
)
def test_first_is_what_failing_tests_reach_and_passing_ones_do_not(
    toy: Course, others: list[Judged], order: list[str]
) -> None:
    """Of equal ones the later."""
    phase, exercise = task_of(toy)
    failed = ran("a", "failed", "Fifo.head", "Fifo.drain")
    calls = calls_of(phase, exercise)
    assert by_suspicion(failed, [failed, *others], exercise, calls) == order


def test_of_equal_ones_the_one_that_calls_the_others_comes_first(toy: Course) -> None:
    """Its tests come to all of them; the manifest names them in any order."""
    _, exercise = task_of(toy)
    failed = ran("a", "failed", "Fifo.head", "Fifo.drain")
    calls = {"Fifo.head": {"Fifo.drain"}, "Fifo.drain": set[str]()}
    assert by_suspicion(failed, [failed], exercise, calls) == ["Fifo.head", "Fifo.drain"]
    course = Course(ROOT)
    phase = course.phase("05")
    calls = calls_of(phase, phase.exercise("1"))
    assert calls["InputBatch.add_request"] == {"InputBatch._take_row", "InputBatch.append_blocks"}
    assert calls["InputBatch._take_row"] == set()


def test_what_a_failing_test_never_reached_is_no_suspect(toy: Course) -> None:
    phase, exercise = task_of(toy)
    tests = [ran("a", "failed", "Fifo.head"), ran("b", "failed", "Fifo.drain")]
    calls = calls_of(phase, exercise)
    assert by_suspicion(tests[0], tests, exercise, calls) == ["Fifo.head"]
    assert place_to_edit(phase, exercise, tests).endswith("(Fifo.head)")
    assert place_to_edit(phase, exercise, [ran("a", "passed")]).endswith(
        "(Fifo.head or Fifo.drain)"
    )


BOTH = """
def test_00_2_both():
    \"\"\"Head and drain agree.\"\"\"
    fifo = filled()
    expect(fifo.head == fifo.drain(1)[0], True, at="the first of three")
"""


def test_the_hint_speaks_of_the_function_that_the_next_step_names(toy: Course) -> None:
    tests = toy.root / "tests/public/00-toy/test_toy.py"
    text = tests.read_text()
    at = text.index("def test_00_2_head_is_oldest")
    tests.write_text(text[:at] + BOTH.lstrip() + "\n\n" + text[at:])
    solve(toy)
    rewrite(toy, "Fifo.drain", "return [self.items.pop() for _ in range(number)]")
    shown, _ = screen(toy)
    says(
        shown,
        "asked    fifo.head == fifo.drain(1)[0]",
        "yours    False",
        "(Fifo.drain or Fifo.head)",
    )
    phase, exercise = task_of(toy)
    assert State(toy.root).get("phases", "00-toy")["failing"] == {"00.2": "Fifo.drain"}
    assert function_at(phase, exercise) == "Fifo.drain"


def test_what_fails_comes_before_what_is_open(toy: Course) -> None:
    """A learner with the second task first is led to its fault, and not back to the first."""
    solve(toy, "Fifo.head", "Fifo.drain")
    rewrite(toy, "Fifo.head", "return self.items[-1]")
    says(screen(toy)[0], "○ 00.1", "✗ 00.2", "next: edit labs/00-toy/fifo.py:", "(Fifo.head)")
    assert current_task(task_of(toy)[0], "").id == "00.2"
    rewrite(toy, "Fifo.head", "return self.items[0] if self.items else None")
    says(screen(toy)[0], "next: edit labs/00-toy/fifo.py:8 (clamp)")
    assert current_task(task_of(toy)[0], "").id == "00.1"


USES_BOTH = """
def test_00_1_and_drain():
    \"\"\"What is clamped is drained.\"\"\"
    expect(filled().drain(clamp(5, 2, 9)), [1, 2], at="two of three")
"""


@pytest.mark.parametrize("blamed", ["Fifo.drain", "clamp", ""])
def test_a_function_that_returned_a_wrong_type_is_the_one_to_begin_with(
    toy: Course, blamed: str
) -> None:
    """Though each test of its task uses the earlier task's functions, too."""
    phase, second = task_of(toy)
    first = phase.exercise("1")
    tests = [ran(name, "failed", "clamp", "Fifo.drain") for name in "ab"]
    tests[0].task = "00.1"
    if blamed:
        tests[0].detail["returned"] = {"file": str(lab(toy)), "function": blamed}
    found = root_of(PhaseResult(phase, tests), [first, second])
    assert found == (second if blamed == "Fifo.drain" else first)


@pytest.mark.parametrize("clamp_fails_itself", [False, True])
def test_the_task_to_begin_with_is_the_one_that_fails_without_the_other(
    toy: Course, clamp_fails_itself: bool
) -> None:
    """A test of an earlier task may use what a later one gets wrong."""
    tests = toy.root / "tests/public/00-toy/test_toy.py"
    tests.write_text(tests.read_text() + "\n" + USES_BOTH)
    solve(toy)
    rewrite(toy, "Fifo.drain", "return [self.items.pop() for _ in range(number)]")
    if clamp_fails_itself:
        rewrite(toy, "clamp", "return budget + 1")
    shown, _ = screen(toy)
    function = "clamp" if clamp_fails_itself else "Fifo.drain"
    says(shown, "✗ 00.1", "✗ 00.2", f"({function}), then make lab-00")
    assert shown.count("first difference") == 1
    phase, _ = task_of(toy)
    assert current_task(phase, "").id == ("00.1" if clamp_fails_itself else "00.2")


def test_an_error_is_shown_with_the_line_of_code_that_raised_it(toy: Course) -> None:
    """`queue.Empty`, for one, says nothing by its name alone."""
    solve(toy)
    rewrite(toy, "Fifo.drain", "import queue\nreturn queue.Queue().get_nowait()")
    line = lab(toy).read_text().split("get_nowait")[0].count("\n") + 1
    shown, _ = screen(toy)
    says(shown, f"in Fifo.drain, labs/00-toy/fifo.py:{line}: return queue.Queue().get_nowait()")


def test_an_approximate_number_is_said_once(toy: Course) -> None:
    tests = toy.root / "tests/public/00-toy/test_toy.py"
    text = tests.read_text().replace(
        "assert clamp(3, -1, 8) == 0,", "assert clamp(3, -1, 8) == approx(7),"
    )
    tests.write_text("from pytest import approx\n" + text)
    solve(toy)
    shown, _ = screen(toy)
    says(shown, "a negative budget gives 0", "yours    0", "expected 7 ± 7.0e-06")
    assert "comparison failed" not in shown and "assert" not in shown


def test_a_returned_value_is_named_with_its_article(toy: Course) -> None:
    phase, exercise = task_of(toy)
    wrong = {"function": "Fifo.drain", "verb": "returned", "type": "int", "promised": "list[int]"}
    test = Judged("a", "a", "a", exercise.id, "failed", detail={"returned": wrong})
    assert diagnose.explain(test, phase) == [
        "Fifo.drain returned an int; its signature promises list[int]."
    ]


SLIP = """
taken = []
for _ in range(number):
    taken.append(self.items.popleft())
    return taken
"""


def test_a_slip_is_told_and_led_to(toy: Course) -> None:
    """What the test shows is its consequence: one item of two."""
    solve(toy)
    rewrite(toy, "Fifo.drain", SLIP)
    number = lab(toy).read_text().splitlines().index("            return taken") + 1
    says(
        " ".join(screen(toy)[0].split()),
        f"In Fifo.drain, the `return` in line {number} ends the loop of line {number - 2}",
        f"next: edit labs/00-toy/fifo.py:{number} (Fifo.drain)",
    )


@pytest.mark.parametrize("refuses", ["assert 0, self.items", "raise ValueError(self.items)"])
def test_a_raise_points_to_the_caller(toy: Course, refuses: str) -> None:
    """An `assert` says what its caller got wrong, as a `raise` does."""
    phase, exercise = task_of(toy)
    solve(toy)
    rewrite(toy, "Fifo.head", refuses)
    rewrite(toy, "Fifo.drain", "return [self.head for _ in range(number)]")
    lines = lab(toy).read_text().splitlines()
    calls = next(n for n, line in enumerate(lines, 1) if "return [self.head" in line)
    inside = next(n for n, line in enumerate(lines, 1) if refuses in line)
    test = ran("a", "failed", "Fifo.head", "Fifo.drain")
    frames = [(calls, "Fifo.drain"), (inside, "Fifo.head")]
    test.detail["frames"] = [(str(lab(toy)), line, name) for line, name in frames]
    assert place_to_edit(phase, exercise, [test]).endswith(f":{calls} (Fifo.drain)")


def test_a_task_of_which_nothing_is_written_has_not_failed(toy: Course) -> None:
    """Its tests fail because of what an earlier task returns."""
    rewrite(toy, "clamp", "raise TypeError(wanted)")
    tests = toy.root / "tests/public/00-toy/test_toy.py"
    text = tests.read_text()
    at = text.index("def test_00_2_head_is_oldest")
    uses = 'def test_00_2_clamped():\n    """Clamped."""\n    clamp(1, 2, 3)\n\n\n'
    tests.write_text(text[:at] + uses + text[at:])
    text = screen(toy)[0]
    says(text, "✗ 00.1", "○ 00.2", "(clamp), then make lab-00")
    assert "✗ 00.2" not in text


def test_a_comprehension_is_named_as_the_function_around_it(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "Fifo.drain", "taken = lambda: self.items.missing\nreturn [taken() for _ in 'ab']")
    text = screen(toy)[0]
    says(text, "in Fifo.drain, labs", "(Fifo.drain), then make lab-00")
    assert "<locals>" not in text


def test_an_endless_loop_is_told_beside_a_failure_that_comes_first(toy: Course) -> None:
    """It is why the run took so long."""
    solve(toy)
    body = "while budget < 3:\n    pass\nreturn 12345"
    rewrite(toy, "clamp", body)
    text = screen(toy)[0]
    says(text, "✗ 00.1", "12345", "did not end:", "endless loop?", "in clamp: ")
