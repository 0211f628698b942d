"""The learner's loop on the toy course: every typical mistake gets a message that leads back."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from typing import Any

import pytest
import typer

from labkit.course import sync
from labkit.course.console import some
from labkit.course.manifest import Course, Phase
from labkit.course.state import State, fingerprint
from labkit.inside import child
from labkit.judge import diagnose, mistakes, public
from labkit.learner import commands as loop
from labkit.learner import hints
from labkit.learner.screen import _short_message
from labkit.practice.progress import progress
from labkit.quality import mutants
from tests.labkit.toy_course import (
    ENGINE,
    lab,
    noted_ends,
    rewrite,
    solve,
    write,
)


def screen(course: Course, labs: str = "") -> tuple[str, bool]:
    """What `make lab-00` prints, and whether all is green."""
    out = io.StringIO()
    with redirect_stdout(out):
        green = loop.judge_and_show(course.phase("0"), labs)
    return out.getvalue(), green


def says(text: str, *words: str) -> None:
    for word in words:
        assert word in text, f"{word!r} is not in:\n{text}"


def answer_notebook(course: Course) -> None:
    path = course.root / "labs/00-toy/lab.ipynb"
    text = path.read_text()
    text = text.replace(
        r"raise NotImplementedError(\"TODO N00.1: Blocks of a request\")",
        "return -(-tokens // size)",
    )
    path.write_text(text.replace("waste = ...", "waste = 15"))


def test_an_untouched_skeleton_is_met_calmly(toy: Course) -> None:
    text, green = screen(toy)
    assert not green
    says(
        text, "Nothing is written yet", "That is how it should be", "labs/00-toy/fifo.py:8 (clamp)"
    )
    says(text, "make lab-00", "make hint-00", "public 0/5 · notebook 0/2 · hidden not run")
    assert "✗" not in text


def test_a_wrong_answer_in_the_notebook_is_shown_though_nothing_else_is_written(
    toy: Course,
) -> None:
    path = toy.root / "labs/00-toy/lab.ipynb"
    document = json.loads(path.read_text())
    for cell in document["cells"]:
        if "todo" in cell["metadata"].get("tags", []):
            cell["source"] = "def blocks(*_):\n    return -1\n"
    path.write_text(json.dumps(document))
    text, _ = screen(toy)
    assert "Nothing is written yet" not in text
    says(text, "○ 00.1", "✗ N00.1", "next: edit labs/00-toy/fifo.py:8 (clamp)")


def test_all_green_needs_tests_and_notebook(toy: Course) -> None:
    solve(toy)
    text, green = screen(toy)
    assert not green
    says(text, "✓ 00.1", "✓ 00.2", "public 5/5 · notebook 0/2", "○ N00.1", "make notebook-00")
    answer_notebook(toy)
    text, green = screen(toy)
    assert green, text
    says(
        text,
        "public 5/5 · notebook 2/2 · hidden not run · interpreter n/a · GPU n/a",
        "make run-00",
    )


def test_the_reference_is_green(toy: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB", "reference")
    text, green = screen(toy)
    assert green, text
    says(text, "the reference (LAB=reference)")
    assert not (toy.root / ".labkit/state.json").exists(), "the reference earns a learner nothing"


def test_a_failure_shows_yours_expected_state_and_where_to_read(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "clamp", "return max(min(wanted, limit), 0)")
    text, green = screen(toy)
    assert not green
    says(text, "✗ 00.1 Clamp  (1 of 3)", "✗ The budget bounds what fits.", "✓ 00.2")
    says(
        text,
        "first difference: 10 wanted, 4 in the budget",
        "yours    8",
        "expected 4",
        "budget   4",
    )
    says(text, "tests/public/00-toy/test_toy.py:", "phases/00-toy/02-mini-build.md#task-1")
    says(text, "scheduler.py#L1-L2", "next: edit labs/00-toy/fifo.py:8 (clamp), then make lab-00")


def test_a_long_list_of_functions_is_cut_and_a_short_one_is_not() -> None:
    assert some(["a", "b", "c"]) == "a, b, c"
    assert some(list("abcdefghijk")) == "a, b, c and 8 more"


def test_next_names_the_functions_of_the_first_failing_task(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "Fifo.drain", "return [self.items.popleft()]")
    says(screen(toy)[0], "next: edit labs/00-toy/fifo.py:33 (Fifo.drain), then")


def test_next_and_the_hint_leave_out_what_the_failed_test_never_entered(
    toy: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    """The property is wrong only in its value, so no traceback leads to it."""
    solve(toy)
    rewrite(toy, "Fifo.head", "return 99")
    says(screen(toy)[0], "next: edit labs/00-toy/fifo.py:27 (Fifo.head), then")
    loop.hint("00", "2", "")
    says(capsys.readouterr().out, "labs/00-toy/fifo.py:27 (Fifo.head)")


def test_next_points_past_given_code_and_at_helpers_of_your_own(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "Fifo.drain", "self.push(item=1, to=2)\nreturn []")
    says(screen(toy)[0], "(Fifo.drain), then make lab-00")
    rewrite(toy, "Fifo.drain", "return [self.push([][number])]")
    says(screen(toy)[0], "next: edit labs/00-toy/fifo.py:35 (Fifo.drain)")
    text = lab(toy).read_text()
    lab(toy).write_text(text + "\n\ndef helper(number: int) -> int:\n    return 1 // 0\n")
    rewrite(toy, "Fifo.drain", "return [helper(number)]")
    says(screen(toy)[0], "(helper), then make lab-00")


def test_next_points_at_given_codes_caller(toy: Course) -> None:
    solve(toy)
    for file in (lab(toy), toy.phase("0").reference_file("toy.fifo")):  # given, and as given
        text = file.read_text()
        file.write_text(text.replace("self.items.append(item)", "self.items.append(item + 0)"))
    rewrite(toy, "Fifo.drain", "self.push('no number')\nreturn []")
    text, _ = screen(toy)
    says(text, "in Fifo.push, labs/00-toy/fifo.py:", "(Fifo.drain), then make lab-00")


def test_next_points_at_an_open_function_first(toy: Course) -> None:
    solve(toy, "clamp", "Fifo.head")
    says(screen(toy)[0], "○ 00.2", "next: edit labs/00-toy/fifo.py:33 (Fifo.drain)")


def test_next_points_at_the_function_of_a_known_mistake(toy: Course) -> None:
    phase = toy.phase("0")
    mutants.write_vectors(phase, mutants.run(phase, mistakes.load(phase)))
    solve(toy)
    rewrite(toy, "Fifo.drain", "return [self.items.pop() for _ in range(number) if self.items]")
    text, _ = screen(toy)
    says(text, "Your queue is a stack", "(Fifo.drain), then make lab-00")


def test_a_known_mistake_is_named(toy: Course) -> None:
    phase = toy.phase("0")
    mutants.write_vectors(phase, mutants.run(phase, mistakes.load(phase)))
    solve(toy, "clamp")
    rewrite(toy, "clamp", "return max(min(wanted, limit), 0)")
    text, _ = screen(toy)
    says(text, "known mistake: Your clamp obeys the limit but forgets the budget.", "○ 00.2")
    rewrite(toy, "clamp", "return 12345")
    assert "known mistake" not in screen(toy)[0]


TWINS = """
[[mutants]]
exercise = "00.1"
name = "one-too-many"
misconception = "Your clamp takes one more than the budget."
function = "clamp"
search = "budget"
replace = "budget + 1"

[[mutants]]
exercise = "00.1"
name = "twice"
misconception = "Your clamp takes the budget twice."
function = "clamp"
search = "budget"
replace = "2 * budget"
"""


def test_of_mistakes_that_fail_the_same_tests_the_one_with_her_values_is_named(toy: Course) -> None:
    phase = toy.phase("0")
    file = mistakes.mutants_file(phase)
    file.write_text(file.read_text() + TWINS)
    mutants.write_vectors(phase, mutants.run(phase, mistakes.load(phase)))
    failing = json.loads(mistakes.vectors_file(phase).read_text())["public"]
    assert failing["one-too-many"] == failing["twice"] != []
    solve(toy)
    for wrong, said in (
        ("budget + 1", "Your clamp takes one more than the budget."),
        ("2 * budget", "Your clamp takes the budget twice."),
    ):
        rewrite(toy, "clamp", f"return max(min(wanted, {wrong}, limit), 0)")
        says(screen(toy)[0], f"known mistake: {said}")
    rewrite(toy, "clamp", "return max(min(wanted, budget + 2, limit), 0)")
    assert "known mistake" not in screen(toy)[0], "a third one fails the same tests"


REFUSES = """
[[mutants]]
exercise = "00.1"
name = "refuses"
misconception = "Your clamp refuses what it should cut."
function = "clamp"
body = "raise ValueError(f'{wanted} is too much')"
"""


@pytest.mark.parametrize("recorded", [True, False])
def test_of_an_error_the_words_must_be_the_same(toy: Course, recorded: bool) -> None:
    """Its kind alone fits many mistakes: `index` raises a ValueError, too."""
    phase = toy.phase("0")
    file = mistakes.mutants_file(phase)
    file.write_text(file.read_text() + REFUSES)
    known = mistakes.load(phase)
    mutants.write_vectors(phase, mutants.run(phase, known))
    if recorded:
        mutants.write_faults(phase, known)
    solve(toy)
    rewrite(toy, "clamp", "if wanted:\n    raise ValueError(f'{wanted} is too much')\nreturn 0")
    says(screen(toy)[0], "known mistake: Your clamp refuses what it should cut.")
    rewrite(toy, "clamp", "return [budget].index(limit + wanted + 1)")
    text = screen(toy)[0]
    says(text, "ValueError", "✗ 00.1")
    assert "known mistake" not in text


def test_of_a_test_that_asks_yes_or_no_the_values_of_others_must_be_the_same(toy: Course) -> None:
    """False in place of True is what every mistake fails it with."""
    phase, file = toy.phase("0"), toy.root / "tests/public/00-toy/test_toy.py"
    text = file.read_text().replace(
        "expect(clamp(10, 4, 8), 4,", "expect(clamp(10, 4, 8) == 4, True,"
    )
    bare = '    assert clamp(3, -1, 8) == 0, "a negative budget gives 0"'
    assert bare in text
    file.write_text(text.replace(bare, '    expect(clamp(3, -1, 8), 0, at="a negative budget")'))
    known = mistakes.load(phase)
    mutants.write_vectors(phase, mutants.run(phase, known))
    mutants.write_faults(phase, known)
    solve(toy)
    rewrite(toy, "clamp", "return min(limit, wanted)")
    says(
        screen(toy)[0],
        "✗ 00.1",
        "known mistake: Your clamp obeys the limit but forgets the budget.",
    )
    rewrite(toy, "clamp", "return min(limit, wanted) if budget > 0 else 7")
    text = screen(toy)[0]
    says(text, "✗ 00.1", "yours    False")
    assert "known mistake" not in text


def test_a_mistake_in_a_function_that_is_right_is_not_hers(toy: Course) -> None:
    """The same failures may come from another function of the task."""
    phase = toy.phase("0")
    mutant = next(each for each in mistakes.load(phase) if each.function == "clamp")
    mapping = {mutant.module: str(lab(toy))}
    solve(toy)
    assert not mistakes._may_be_hers(phase, mutant, mapping)
    rewrite(toy, "clamp", "return 42")
    assert mistakes._may_be_hers(phase, mutant, mapping)
    rewrite(toy, "clamp", "return 42\nmax(min(wanted, budget, limit), 0)")
    assert not mistakes._may_be_hers(phase, mutant, mapping), "its last line is never reached"


def test_a_missing_error_is_said_in_words() -> None:
    detail: dict[str, object] = {"error": "Failed", "message": "DID NOT RAISE ValueError"}
    assert _short_message(detail) == ["It should have raised ValueError, and nothing was raised."]


WANTS_AN_ERROR = """
import pytest

from toy.fifo import clamp


def test_00_1_refuses():
    'Less than nothing is an error.'
    with pytest.raises(ValueError):
        clamp(1, -5, 1)
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "assert budget >= 0\nreturn 1",
            ["AssertionError\n", "in clamp, ", ": assert budget >= 0"],
        ),
        ("assert budget >= 0, 'none left'\nreturn 1", ["AssertionError: none left"]),
        ("return [][budget]", ["IndexError: list index out of range"]),
    ],
)
def test_another_error_than_the_one_that_is_wanted_is_named_beside_it(
    toy: Course, body: str, words: list[str]
) -> None:
    solve(toy)
    (toy.root / "tests/public/00-toy/test_toy.py").write_text(WANTS_AN_ERROR, encoding="utf-8")
    rewrite(toy, "clamp", body)
    text = screen(toy)[0]
    says(text, "✗ Less than nothing is an error.", *words, "It should have raised ValueError.")
    says(text, "called   clamp(wanted=1, budget=-5, limit=1)\n")


WANTS_ERRORS = """
import pytest

from toy.fifo import clamp


@pytest.mark.parametrize("budget", [3, -5])
def test_00_1_refuses(budget):
    'No budget is right.'
    with pytest.raises(ValueError):
        clamp(1, budget, 1)
"""


def test_the_case_in_which_nothing_was_raised_is_named(toy: Course) -> None:
    solve(toy)
    (toy.root / "tests/public/00-toy/test_toy.py").write_text(WANTS_ERRORS, encoding="utf-8")
    rewrite(toy, "clamp", "if budget > 0:\n    raise ValueError\nreturn 1")
    text = screen(toy)[0]
    says(text, "It should have raised ValueError, and nothing was raised.", "case     budget=-5\n")
    assert "called " not in text


def test_what_a_known_mistake_fails_with_is_recorded_so_that_nothing_runs_twice(
    toy: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = toy.phase("0")
    file = mistakes.mutants_file(phase)
    file.write_text(file.read_text() + TWINS)
    known = mistakes.load(phase)
    mutants.write_vectors(phase, mutants.run(phase, known))
    mutants.write_faults(phase, known)
    assert mistakes.faults(phase).keys() == {mutant.name for mutant in known}
    solve(toy)
    ran: list[str] = []
    real = mistakes.run_some

    def run_some(phase: Phase, mutant: mistakes.Mutant, *more: Any) -> public.PhaseResult:
        ran.append(mutant.name)
        return real(phase, mutant, *more)

    monkeypatch.setattr(mistakes, "run_some", run_some)
    rewrite(toy, "clamp", "return max(min(wanted, budget + 1, limit), 0)")
    says(screen(toy)[0], "known mistake: Your clamp takes one more than the budget.")
    assert not ran
    rewrite(toy, "clamp", "return max(min(wanted, budget + 2, limit), 0)")
    assert "known mistake" not in screen(toy)[0]
    assert ran, "what is not as recorded is looked at"


def test_a_task_that_reaches_another_hole_waits_for_it(toy: Course) -> None:
    solve(toy, "Fifo.head", "Fifo.drain")
    says(screen(toy)[0], "○ 00.1 Clamp  (not written yet)", "… 00.2", "(1 of 2)  waits for 00.1")


def test_a_syntax_error_is_shown_with_its_line(toy: Course) -> None:
    lab(toy).write_text(lab(toy).read_text().replace("def clamp(", "def clamp(("))
    text, green = screen(toy)
    assert not green
    says(text, "labs/00-toy/fifo.py:8 is not Python yet", "SyntaxError", "^", "mend line 8")


def test_a_forgotten_return_is_named(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "clamp", "smallest = max(min(wanted, budget, limit), 0)")
    says(screen(toy)[0], "clamp returned None; its signature promises int. Is a `return` missing")


def test_a_wrong_return_type_is_named(toy: Course) -> None:
    solve(toy)
    rewrite(
        toy,
        "Fifo.drain",
        "return tuple(self.items.popleft() for _ in range(min(number, len(self.items))))",
    )
    text, _ = screen(toy)
    says(
        text,
        "Fifo.drain returned a tuple; its signature promises list",
        "(1, 2)  (tuple)",
        "(list)",
    )


def test_infinite_recursion_is_named(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "Fifo.drain", "return self.drain(number)")
    text, _ = screen(toy)
    says(text, "Fifo.drain calls itself without an end", "labs/00-toy/fifo.py:")
    assert text.count(": return self.drain(number)") == 1, "the call, and not the first line"


def test_an_endless_loop_is_reported_with_its_line_and_the_rest_still_runs(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "Fifo.drain", "while self.items:\n    number -= 1\nreturn []")
    text, _ = screen(toy)
    says(text, "Still running after 1 s", "in Fifo.drain: ", "✓ 00.1")
    assert "number -= 1" in text or "while self.items:" in text


def test_an_endless_loop_in_a_thread_is_found_behind_the_long_stack_of_another(toy: Course) -> None:
    """Threads come first in what a stopped process says, and pytest's own stack is long."""
    there = f'  File "{lab(toy)}", line 12 in clamp\n'
    here = '  File "/usr/lib/site-packages/pluggy/_callers.py", line 121 in _multicall\n' * 90
    said = f"Thread 0x1 (most recent call first):\n{there}\nCurrent thread 0x2:\n{here}"
    event = {"event": "collected", "id": "a", "name": "test_00_1_any", "title": "Any."}
    done = child.Finished(None, "", said, 60.0)
    (test,) = public._collect(toy.phase("0"), [event], done).tests
    words = " ".join(diagnose.explain(test, toy.phase("0")))
    says(words, "endless loop?", "It was at labs/00-toy/fifo.py:12 in clamp")


# Python 3.11 raises at the instruction *before* the loop's first one: `turns = 0` keeps that
# instruction, too, inside the `try`.
CATCHES_EVERYTHING = """
while True:
    try:
        turns = 0
        while True:
            turns += 1
    except BaseException:
        pass
""".strip()


def test_an_endless_loop_that_catches_everything_ends_as_soon_as_others(
    toy: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    solve(toy)
    rewrite(toy, "clamp", CATCHES_EVERYTHING)
    ended = noted_ends(monkeypatch)
    text, _ = screen(toy)
    assert ended and not any(run.timed_out for run in ended), "by the limit of the whole run"
    says(text, "stopped as a whole; it stood here", "in clamp")
    says(text, "✗ 00.1", "Still running after 1 s", "(clamp), then make lab-00")
    assert "in clamp: turns += 1" in text or "in clamp: while True:" in text, text


@pytest.mark.parametrize("work", ["pass", "time.sleep(0.01)"])
def test_a_thread_that_never_ends_is_told(toy: Course, work: str) -> None:
    """The grade would call it an endless loop; one that waits costs no points."""
    solve(toy)
    text = lab(toy).read_text(encoding="utf-8")
    spin = f"import threading, time\n\n\ndef spin():\n    while True:\n        {work}\n\n\n"
    start = "threading.Thread(target=spin, daemon=True).start()\n"
    lab(toy).write_text(text + "\n\n" + spin + start, encoding="utf-8")
    shown, _ = screen(toy)
    assert ("A thread still computes after the last test" in shown) == (work == "pass")


KEPT_BY_THE_LOOP = """
import asyncio

async def spin():
    while True:
        pass

async def wait():
    await asyncio.wait([asyncio.ensure_future(spin())])

asyncio.run(wait())
return -1
""".strip()


def test_an_endless_loop_in_a_task_of_an_event_loop_is_one(toy: Course) -> None:
    """The task keeps what ends it, and the test goes on to a wrong value; the task's other tests
    need not wait so long."""
    solve(toy)
    rewrite(toy, "clamp", KEPT_BY_THE_LOOP)
    text, _ = screen(toy)
    says(text, "✗ 00.1", "Still running after 1 s", "(clamp), then make lab-00")
    assert "in clamp: while True:" in text or "in clamp: pass" in text, "the task's own line"


def test_a_cell_that_ends_the_process_is_named(toy: Course) -> None:
    solve(toy)
    answer_notebook(toy)
    path = toy.root / "labs/00-toy/lab.ipynb"
    path.write_text(path.read_text().replace("waste = 15", "import os; os._exit(3)"))
    text, _ = screen(toy)
    says(text, "✗ N00.2 Waste", "here the whole process ended (exit code 3)", "- N00.1")
    assert "restore the notebook" not in text


def test_a_cell_that_is_not_python_is_named_with_its_line_once(toy: Course) -> None:
    solve(toy)
    answer_notebook(toy)
    path = toy.root / "labs/00-toy/lab.ipynb"
    path.write_text(path.read_text().replace("waste = 15", "waste = (15"))
    says(screen(toy)[0], "✗ N00.2 Waste", "SyntaxError: '(' was never closed (line 1 of the cell)")


def test_a_cell_that_catches_everything_is_named(
    toy: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    solve(toy)
    answer_notebook(toy)
    path = toy.root / "labs/00-toy/lab.ipynb"
    document = json.loads(path.read_text())
    (cell,) = [c for c in document["cells"] if "waste = 15" in "".join(c["source"])]
    cell["source"] = CATCHES_EVERYTHING.splitlines(keepends=True)
    path.write_text(json.dumps(document))
    ended = noted_ends(monkeypatch)
    text, _ = screen(toy)
    assert ended and not any(run.timed_out for run in ended), "by the limit of all answers"
    says(text, "✗ N00.2 Waste", "still running after 1 s of computing or sleeping (line ")
    says(text, "N00.1", "did not run", "public 5/5 · notebook 0/2")


def test_print_spam_is_cut(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "clamp", "for i in range(3000):\n    print('here', i)\nreturn -1")
    text, _ = screen(toy)
    says(text, "Your code printed 3000 lines", "│ here 0", "│ … 3000 lines")
    assert text.count("\n") < 60


def test_a_memory_bomb_is_reported(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "clamp", "return len(bytearray(1 << 44))")
    says(screen(toy)[0], "Out of memory")


def test_an_import_error_is_shown_with_its_line(toy: Course) -> None:
    solve(toy)
    text = lab(toy).read_text()
    lab(toy).write_text(text.replace("class Fifo:", "LIMIT = undefined_name\n\n\nclass Fifo:"))
    says(
        screen(toy)[0],
        "labs/00-toy/fifo.py:15 fails while it is imported",
        "NameError",
        "undefined_name",
    )


def test_a_deleted_lab_file_is_named_with_the_way_back(toy: Course) -> None:
    lab(toy).unlink()
    says(
        screen(toy)[0],
        "labs/00-toy/fifo.py is missing.",
        "next: make reset-00 puts the skeleton back",
    )


def test_a_renamed_function_is_named(toy: Course) -> None:
    lab(toy).write_text(lab(toy).read_text().replace("def clamp", "def clip"))
    says(
        screen(toy)[0],
        "labs/00-toy/fifo.py has no clamp any more; task 00.1",
        "make reset-00 TASK=1",
    )


def test_editing_the_engine_instead_of_the_lab_is_noticed(toy: Course) -> None:
    root = str(toy.root)
    subprocess.run(["git", "-C", root, "init", "-q"], check=True)
    subprocess.run(["git", "-C", root, "add", "."], check=True)
    subprocess.run(
        ["git", "-C", root, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x"],
        check=True,
    )
    assert "note:" not in screen(toy)[0]
    write(toy.root, "toy/fifo.py", ENGINE + "# mine\n")
    says(
        screen(toy)[0],
        "toy/fifo.py is edited, but your file is labs/00-toy/fifo.py",
        "git checkout",
    )


@pytest.mark.parametrize("words", [["init", "-q"], ["add", "."]], ids=["untracked", "added"])
def test_a_course_from_an_archive_is_not_edited(toy: Course, words: list[str]) -> None:
    """Unpacked into a new repository, none of its files has a commit to go back to."""
    for arguments in (["init", "-q"], words):
        subprocess.run(["git", "-C", str(toy.root), *arguments], check=True)
    assert "note:" not in screen(toy)[0]


def test_a_removed_notebook_cell_is_named(toy: Course) -> None:
    solve(toy)
    path = toy.root / "labs/00-toy/lab.ipynb"
    document = json.loads(path.read_text())
    document["cells"] = [c for c in document["cells"] if c["metadata"].get("task") != "N00.2"]
    path.write_text(json.dumps(document))
    text, green = screen(toy)
    assert not green
    says(text, "✗ N00.2 Waste", "its cell is gone", "reset 00 --notebook")


def test_a_deleted_or_broken_notebook_is_named(toy: Course) -> None:
    solve(toy)
    path = toy.root / "labs/00-toy/lab.ipynb"
    path.write_text("not json")
    says(screen(toy)[0], "lab.ipynb", "Expecting value")
    path.unlink()
    says(screen(toy)[0], "labs/00-toy/lab.ipynb is missing", "make reset-00")


def test_a_wrong_notebook_answer_says_why(toy: Course) -> None:
    solve(toy)
    answer_notebook(toy)
    path = toy.root / "labs/00-toy/lab.ipynb"
    path.write_text(path.read_text().replace("waste = 15", "waste = 16"))
    says(screen(toy)[0], "✗ N00.2 Waste", "yours is 16, expected is 15: two blocks hold 32 tokens")
    path.write_text(path.read_text().replace("waste = 16", r"while True:\n    pass"))
    says(screen(toy)[0], "still running after 1 s of computing or sleeping (line 1")


def test_hints_go_from_concept_to_code_and_are_remembered(
    toy: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    for level, words in enumerate(
        ["Two bounds.", "Never above either.", "In clamp.", "min, then max"]
    ):
        loop.hint("00", "", "")
        text = capsys.readouterr().out
        says(text, f"{level + 1} of 4", words)
    says(text, "make diff-00")
    assert State(toy.root).get("hints", "00.1") == 4
    solve(toy, "clamp")
    screen(toy)
    loop.hint("00", "", "")
    says(capsys.readouterr().out, "00.2 Leave in order")


def test_the_first_hint_is_of_the_test_that_failed(
    toy: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(toy, "clamp", "return max(min(wanted, budget), 0)")  # forgets the limit
    screen(toy)
    loop.hint("00", "", "")
    text = capsys.readouterr().out
    says(text, "✗ The limit bounds what fits.", "10 wanted, limit 4", "yours     8", "expected  4")
    says(text, "of this test: Two numbers bound it")
    assert "1 of 4" not in text
    loop.hint("00", "", "")
    says(capsys.readouterr().out, "of this test: Two numbers", "1 of 4, concept: Two bounds.")
    rewrite(toy, "clamp", "return max(min(wanted, limit), 0)")  # this test has no hint of its own
    screen(toy)
    loop.hint("00", "", "")
    text = capsys.readouterr().out
    says(text, "✗ The budget bounds what fits.", "limit     8", "2 of 4, invariant")
    assert "of this test" not in text


def test_of_a_test_with_parameters_the_smallest_input_is_shown() -> None:
    def case(name: str, words: str) -> public.Test:
        detail = {"at": "n", "state": {"pattern": words}, "yours": "True", "expected": "False"}
        return public.Test(name, name, "A word", "12.3", "failed", detail=detail)

    tests = [case("test_12_3_a[long]", "(a*)*" * 9), case("test_12_3_a[short]", "a?")]
    shown = hints.failure([*tests, case("test_12_3_b", "")])
    assert (shown["test"], shown["lines"][1]) == ("test_12_3_a", "pattern   a?")


def test_a_task_judged_alone_is_remembered(toy: Course, capsys: pytest.CaptureFixture[str]) -> None:
    def judge(task: str) -> None:
        with redirect_stdout(io.StringIO()):
            loop.judge_and_show(toy.phase("0"), task=task)

    phase = toy.phase("0")
    solve(toy, "clamp")
    judge("1")
    assert State(toy.root).standing(phase) == {"00.1"}
    rewrite(toy, "clamp", "return max(min(wanted, budget), 0)")
    judge("1")
    assert State(toy.root).standing(phase) == set()
    loop.hint("00", "", "")
    says(capsys.readouterr().out, "✗ The limit bounds what fits.")
    solve(toy)
    judge("1")
    judge("2")
    record = State(toy.root).get("phases", phase.slug)
    assert (State(toy.root).standing(phase), record["failed"]) == ({"00.1", "00.2"}, {})
    assert record["public"][0] == record["public"][1] > 0
    assert not record["green"] and record["notebook"] == ["-", "-"]  # it was not looked at


def test_diff_asks_before_it_shows_what_is_not_green(
    toy: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(toy, "clamp")
    screen(toy)
    loop.diff("00", "", yes=False)
    text = capsys.readouterr().out
    says(
        text,
        "clamp: the same, line for line",
        'not shown; make diff-00 TASK=2 ARGS="--yes" shows it',
    )
    assert "popleft" not in text
    loop.diff("00", "2", yes=True)
    says(
        capsys.readouterr().out,
        "+         taken.append(self.items.popleft())".replace("         ", "        "),
    )


def test_diff_asks_again_for_what_was_changed_since_it_was_green(
    toy: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(toy)
    screen(toy)
    rewrite(toy, "clamp", "return 0")
    loop.diff("00", "1", yes=False)
    text = capsys.readouterr().out
    says(text, "not shown")
    assert "min(wanted" not in text


def test_diff_of_a_file_that_is_no_python_names_the_line(
    toy: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    lab(toy).write_text("def broken(:\n")
    with pytest.raises(typer.Exit):
        loop.diff("00", "", yes=True)
    says(capsys.readouterr().err, "labs/00-toy/fifo.py:1: invalid syntax; mend it first")


def test_reset_of_one_task_keeps_the_others_and_a_backup(toy: Course) -> None:
    solve(toy)
    loop.reset("00", task="2", notebook_only=False)
    text = lab(toy).read_text()
    assert "min(wanted, budget, limit)" in text
    assert "popleft" not in text
    (kept,) = toy.root.glob(".labkit/backups/*/labs/00-toy/fifo.py")
    assert "popleft" in kept.read_text()
    loop.reset("00", task="", notebook_only=False)
    assert [c.path for c in sync.check(toy, strict=True) if "solutions" not in c.path] == []


def test_a_caught_exception_is_shown_with_its_line(toy: Course) -> None:
    """As an engine that answers with what a request met: the test sees no traceback."""
    catching = (
        "\n\ndef test_00_1_what_is_answered():\n"
        '    """An answer comes."""\n'
        "    try:\n        answer = clamp(3, 4, 5)\n"
        "    except Exception as error:\n        answer = type(error).__name__\n"
        '    expect(answer, 3, at="3 wanted")\n'
    )
    tests = toy.root / "tests/public/00-toy/test_toy.py"
    text = tests.read_text(encoding="utf-8")
    begin = text.index("def test_00_1_budget_bounds")
    tests.write_text(text[:begin] + catching.lstrip() + "\n\n" + text[begin:], encoding="utf-8")
    solve(toy)
    rewrite(toy, "clamp", "return wanted.nothing")
    shown, _ = screen(toy)
    says(shown, "yours    AttributeError", "expected 3")
    says(shown, "AttributeError was raised in your file, and caught by what calls it:")
    says(shown, "in clamp, labs/00-toy/fifo.py:10: return wanted.nothing")
    says(shown, "next: edit labs/00-toy/fifo.py:10 (clamp)")


def test_progress_counts_points_and_shows_planned_phases(
    toy: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    solve(toy, "clamp")
    screen(toy)
    progress()
    says(capsys.readouterr().out, "5/ 15 points", "public 3/5", "not built yet", "5 of 15 points")


def test_progress_says_what_an_edit_has_left_unjudged(
    toy: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    """Points that do not count, beside a count of tests that all passed, explain nothing."""
    solve(toy)
    answer_notebook(toy)
    assert screen(toy)[1]
    phase = toy.phase("0")
    texts = {task.id: fingerprint(phase, task) for task in phase.exercises}
    State(toy.root).put("grades", phase.slug, {"failed": 0, "points": [15, 15], "judged": texts})
    progress()
    says(capsys.readouterr().out, " 15/ 15 points · public 5/5", "· hidden 15/15\n")
    rewrite(toy, "clamp", "return max(0, min(wanted, budget, limit))")
    progress()
    shown = capsys.readouterr().out
    says(shown, " 10/ 15 points · edited since it passed: 00.1; make lab-00 judges it")
    says(shown, "· hidden 15/15 before an edit (make grade-00)\n")
    assert "public 5/5" not in shown
    lab(toy).write_text("def clamp(:", encoding="utf-8")
    progress()
    says(
        capsys.readouterr().out, "  0/ 15 points · edited since it passed: 00.1, 00.2; make lab-00"
    )


def test_a_planned_phase_says_what_comes_and_fails(
    toy: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as stop:
        loop.lab("1", labs="")
    assert stop.value.exit_code == 1
    says(capsys.readouterr().out, "not built yet", "a clock", "a calendar")


def test_exit_codes_and_plain_output_of_the_command(toy: Course) -> None:
    command = [sys.executable, "-c", "import sys; from labkit import cli;"
               "sys.exit(cli.call('lab', cli.COMMANDS['lab'], sys.argv[1:]))", "00"]  # fmt: skip
    red = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (red.returncode, "\x1b" in red.stdout) == (1, False), red.stderr
    solve(toy)
    answer_notebook(toy)
    green = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert green.returncode == 0, green.stdout + green.stderr
    wrong = subprocess.run([*command[:-1], "77"], capture_output=True, text=True, timeout=300)
    assert (wrong.returncode, "no phase '77'" in wrong.stderr) == (2, True)


def test_a_broken_state_file_is_no_obstacle(toy: Course) -> None:
    write(toy.root, ".labkit/state.json", "{broken")
    says(screen(toy)[0], "Nothing is written yet")


def test_a_todo_left_below_the_code_is_named(toy: Course) -> None:
    code = lab(toy).read_text(encoding="utf-8")
    todo = code[code.index("    raise NotImplementedError") : code.index(")\n\n") + 2]
    solve(toy)
    code, last = lab(toy).read_text(encoding="utf-8"), "    return max(smallest, 0)\n"
    lab(toy).write_text(code.replace(last, todo), encoding="utf-8")
    text = screen(toy)[0]
    says(text, "still ends in its TODO", "delete the TODO below your code: labs/00-toy/fifo.py:")
    says(text, "next: delete the TODO in labs/00-toy/fifo.py:")


def test_the_tests_own_line_is_named_before_its_helpers(toy: Course) -> None:
    phase = toy.phase("0")
    test, helpers = (str(phase.public_tests / name) for name in ("test_toy.py", "conftest.py"))
    failed = public.Test(f"{test}::test_00_1_a[4]", "test_00_1_a[4]", "", "00.1")
    failed.detail["frames"] = [[test, 12, "test_00_1_a"], [test, 5, "run"], [helpers, 3, "solve"]]
    assert diagnose.test_line(failed, phase) == "tests/public/00-toy/test_toy.py:12"
    failed.detail["frames"] = failed.detail["frames"][1:]  # a fixture failed
    assert diagnose.test_line(failed, phase) == "tests/public/00-toy/conftest.py:3"


def test_that_only_one_failing_task_is_explained_is_said(toy: Course) -> None:
    """A second failing task has a line and no reason: the screen says how to get it."""
    says_so = 'one failing task is explained; ARGS="--all" explains each'
    solve(toy)
    rewrite(toy, "clamp", "return 42")
    assert says_so not in screen(toy)[0], "one fails, and it is explained"
    rewrite(toy, "Fifo.head", "return 42")
    says(screen(toy)[0], "✗ 00.1", "✗ 00.2", says_so)
