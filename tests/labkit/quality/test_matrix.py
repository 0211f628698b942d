"""The phase matrix and the mutants catch what they are there to catch."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from labkit.course.manifest import Course, ManifestError
from labkit.judge import mistakes
from labkit.quality import chapters, matrix, mutants
from tests.labkit.toy_course import CHAPTER, ENGINE, MUTANTS, NOTEBOOK, TESTS, make_course, write


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """A complete course; not to be changed."""
    course = make_course(tmp_path_factory.mktemp("toy"))
    write(course.root, "solutions/00-toy/WALKTHROUGH.md", "# Why\n")
    return course


def test_a_complete_phase_has_no_problems(toy: Course) -> None:
    phase = toy.phase("0")
    mutants.write_vectors(phase, mutants.run(phase, mistakes.load(phase)))
    found = matrix.run(toy, [phase])["00-toy"]
    assert found.pop("notebook") == ["notebook.py has 2 todo cells; 4 to 8 make a good lab"]
    assert found == {name: [] for name in matrix.CHECKS if name != "notebook"}


def test_a_test_that_is_green_on_the_skeleton_is_found(tmp_path: Path) -> None:
    phase = make_course(tmp_path).phase("0")
    extra = (
        "\n\ndef test_00_1_weak():\n    assert True\n\n\ndef test_other():\n    clamp(1, 2, 3)\n"
    )
    write(tmp_path, "tests/public/00-toy/test_toy.py", TESTS + extra)
    problems = list(matrix.check_skeleton(phase))
    assert "test_00_1_weak: passed on the untouched skeleton; it must reach a TODO" in problems
    assert any("test_other: its name begins with no task" in p for p in problems)


def test_a_hole_that_no_test_of_its_task_reaches_is_found(tmp_path: Path) -> None:
    phase = make_course(tmp_path).phase("0")
    write(
        tmp_path,
        "tests/public/00-toy/test_toy.py",
        TESTS.replace("test_00_2_head", "test_00_1_head"),
    )
    (problem,) = matrix.check_holes(phase)
    assert problem.startswith("Fifo.head: no test test_00_2_")


def test_a_red_reference_is_found(tmp_path: Path) -> None:
    phase = make_course(tmp_path).phase("0")
    write(tmp_path, "toy/fifo.py", ENGINE.replace("max(smallest, 0)", "smallest"))
    (problem,) = matrix.check_reference(phase)
    assert problem.startswith("test_00_1_never_negative: failed on the reference")


def test_a_notebook_whose_answer_is_not_open_is_found(tmp_path: Path) -> None:
    phase = make_course(tmp_path).phase("0")
    leak = NOTEBOOK.replace("waste = 32 - 17  # SOLUTION", "waste = 15  # SOLUTION: waste = 15")
    write(tmp_path, "phases/00-toy/notebook.py", leak)
    problems = list(matrix.check_notebook(phase))
    assert any(p.startswith("N00.2 in a fresh notebook: passed") for p in problems)


@pytest.mark.parametrize("place", ["toy/fifo.py", "phases/00-toy/notebook.py"])
def test_a_body_left_in_a_skeleton_or_notebook_is_found(tmp_path: Path, place: str) -> None:
    course = make_course(tmp_path)
    copy = """
    def _spare(self, number):
        taken = []
        while self.items and len(taken) < number:
            taken.append(self.items.popleft())
        return taken
"""
    if place.endswith("notebook.py"):
        copy = "\n# %%\nif True:\n" + copy
    path = tmp_path / place
    path.write_text(path.read_text() + copy)
    ((phase, problem),) = matrix.find_leaks(course)
    assert phase.slug == "00-toy"
    assert problem.startswith("the body of Fifo.drain stands in labs/00-toy/")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("See `labs/00-toy/lifo.py`.", "there is no labs/00-toy/lifo.py"),
        ("Run `make lap-00`.", "there is no make target lap"),
        ("Run `make lab-00 && LAB=labs make lap-00`.", "there is no make target lap"),
        ("~~~\n$ make lap-00\n~~~", "there is no make target lap"),
        ("Write `Fifo.tail`.", "Fifo has no tail"),
    ],
)
def test_chapters_that_name_what_is_not_there_are_found(
    tmp_path: Path, line: str, words: str
) -> None:
    course = make_course(tmp_path)
    write(tmp_path, "Makefile", "lab-%:\n\ttrue\n")
    write(
        tmp_path,
        "solutions/00-toy/WALKTHROUGH.md",
        "`make lab-00` and `Fifo.items`, `labs/NN-slug/x.py`\n",
    )
    assert chapters.check(course.phase("0")) == []
    write(tmp_path, "phases/00-toy/00-guide.md", f"# Guide\n\n{line}\n")
    number = 4 if line.startswith("~~~") else 3
    assert chapters.check(course.phase("0")) == [f"phases/00-toy/00-guide.md:{number}: {words}"]


def test_prose_may_make_room_and_an_example_may_too(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    write(tmp_path, "Makefile", "lab-%:\n\ttrue\n")
    walkthrough = "Evictions make room. `make lab-00`\n\n```python\npop()  # make room\n```\n"
    write(tmp_path, "solutions/00-toy/WALKTHROUGH.md", walkthrough)
    assert chapters.check(course.phase("0")) == []


def test_a_link_may_name_upstreams_own_symbols(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    write(tmp_path, "solutions/00-toy/WALKTHROUGH.md", "[`Fifo.other`](https://example.org/x)\n")
    assert chapters.check(course.phase("0")) == []


def test_missing_chapters_and_anchors_are_found(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    (tmp_path / "phases/00-toy/03-labs.md").unlink()
    write(
        tmp_path,
        "phases/00-toy/02-mini-build.md",
        CHAPTER.replace("## Task 2", "## Job 2").replace("drain", "empty"),
    )
    problems = chapters.check(course.phase("0"))
    assert "phases/00-toy/03-labs.md does not exist" in problems
    assert any("has no heading or id 'task-2'" in p for p in problems)
    assert any("never names Fifo.drain" in p for p in problems)


def test_mutants_report_survivors(tmp_path: Path) -> None:
    phase = make_course(tmp_path).phase("0")
    write(
        tmp_path,
        "tests/public/00-toy/test_toy.py",
        TESTS.replace("Fifo().head is None", "True").replace("== 1", "in (1, 3)"),
    )
    verdicts = mutants.run(phase, mistakes.load(phase))
    assert {v.mutant.name: v.killed for v in verdicts} == {
        "budget-forgotten": True, "negative": True, "newest-first": True, "head-is-tail": False,
    }  # fmt: skip
    assert "SURVIVED    00.2   head-is-tail" in mutants.matrix(verdicts)


def test_hidden_suites_count_when_asked(tmp_path: Path) -> None:
    phase = make_course(tmp_path).phase("0")
    chosen = [m for m in mistakes.load(phase) if m.name == "newest-first"]
    (verdict,) = mutants.run(phase, chosen, hidden=True)
    assert verdict.hidden == ("test_00_2_drain_matches",)


def test_a_mutant_for_the_hidden_suite_alone_must_be_caught_there(tmp_path: Path) -> None:
    phase = make_course(tmp_path).phase("0")
    extra = """
    [[mutants]]
    exercise = "00.2"
    name = "drains-below-zero"
    misconception = "A negative number takes all."
    function = "Fifo.drain"
    search = "len(taken) < number"
    replace = "len(taken) < (number if number >= 0 else 99)"
    hidden_only = true
    """
    path = tmp_path / "tests/corpora/mutants/00-toy.toml"
    path.write_text(path.read_text() + textwrap.dedent(extra))
    (mutant,) = (m for m in mistakes.load(phase) if m.hidden_only)
    (verdict,) = mutants.run(phase, [mutant])
    assert (verdict.killed, verdict.passed, verdict.mark) == (False, True, "hidden only")
    assert "hidden not run" in mutants.matrix([verdict])
    (verdict,) = mutants.run(phase, [mutant], hidden=True)
    assert (verdict.killed, verdict.passed, verdict.mark) == (False, False, "SURVIVED")
    hidden = tmp_path / "tests/hidden/00-toy/test_toy_hidden.py"
    hidden.write_text(hidden.read_text().replace("fifo.drain(9)", "fifo.drain(-1)"))
    (verdict,) = mutants.run(phase, [mutant], hidden=True)
    assert (verdict.killed, verdict.passed, verdict.mark) == (True, True, "killed")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('search = "popleft"', 'search = "nothing"', "search text is 0 times"),
        ('function = "Fifo.head"', 'function = "Fifo.push"', "Fifo.push is not a function of task"),
        ('name = "negative"', 'name = "head-is-tail"', "two mutants are called 'head-is-tail'"),
        ('replace = "pop"', 'replaced = "pop"', "give exercise, name"),
        ('name = "negative"', 'name = "negative"\nhidden_only = 1', "it must be true, or left"),
    ],
)  # fmt: skip
def test_a_wrong_mutants_file_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    phase = make_course(tmp_path).phase("0")
    assert old in MUTANTS
    text = MUTANTS.replace(old, new, 1)
    if "push" in new:
        text = text.replace('search = "self.items[0]"', 'search = "append"').replace(
            "self.items[-1]", "x"
        )
    write(tmp_path, "tests/corpora/mutants/00-toy.toml", text)
    with pytest.raises(ManifestError, match=words):
        mistakes.load(phase)
