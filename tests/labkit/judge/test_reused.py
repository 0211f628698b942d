"""What runs again after an edit, and what keeps its verdict: on the toy course, in real runs."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout

import pytest

from labkit.course.manifest import Course
from labkit.course.root import find_root
from labkit.judge.reused import Kept, Verdicts
from labkit.learner import commands as loop
from labkit.process import overlay, reach
from tests.labkit.toy_course import lab, noted_ends, rewrite, solve, write

WORDS = "not run again"


@pytest.fixture
def toy(toy: Course) -> Course:
    """The toy course, solved and judged once."""
    solve(toy)
    screen(toy)
    return toy


def screen(course: Course, every: bool = False) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        loop.judge_and_show(course.phase("0"), every=every)
    return out.getvalue()


def kept(course: Course) -> Kept:
    phase = course.phase("0")
    return Verdicts(phase, overlay.mapping_for([phase])).unchanged()


def edit(course: Course, old: str, new: str) -> None:
    text = lab(course).read_text(encoding="utf-8")
    assert old in text
    lab(course).write_text(text.replace(old, new), encoding="utf-8")


def test_nothing_runs_again_if_nothing_has_changed(toy: Course) -> None:
    assert list(kept(toy).tasks) == ["00.1", "00.2"]
    text = screen(toy)
    assert "2 tasks: unchanged since" in text and WORDS in text
    assert 'ARGS="--all" runs everything' in text
    assert "✓ 00.1" in text and "✓ 00.2" in text and "public 5/5" in text


@pytest.mark.parametrize(
    "left",
    [
        "import threading\nthreading.Thread(target=spin).start()\n",
        "import atexit\natexit.register(spin)\n",
        "class Last:\n    def __del__(self):\n        spin()\nlast = Last()\n",
    ],
    ids=["thread", "atexit", "finalizer"],
)
def test_threads_left_behind_do_not_delay_the_end(
    toy: Course, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests have passed, and the process would never end."""
    with lab(toy).open("a", encoding="utf-8") as file:
        file.write(f"\n\ndef spin():\n    while True:\n        pass\n\n\n{left}")
    ended = noted_ends(monkeypatch)
    assert "public 5/5" in screen(toy, every=True)
    assert ended and not any(done.timed_out for done in ended)


def test_each_public_test_lies_in_the_file_of_its_task() -> None:
    """A run of some tasks looks into their files alone (`public.files_of`)."""
    for phase in Course(find_root()).ready:
        for file in phase.public_tests.glob("test_*.py"):
            task = phase.exercise(file.name.split("_")[1])
            names = re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert names and all(name.startswith(task.test_prefix) for name in names), file


def test_all_runs_everything(toy: Course) -> None:
    assert WORDS not in screen(toy, every=True)


def test_an_edit_runs_the_tasks_whose_tests_enter_the_function(toy: Course) -> None:
    """`drain` is entered by tests of 00.2 alone, `clamp` by those of both tasks."""
    rewrite(toy, "Fifo.drain", "return []")
    assert list(kept(toy).tasks) == ["00.1"]
    rewrite(toy, "clamp", "return 0")
    assert not kept(toy).tasks


def test_a_mistake_made_later_is_found(toy: Course) -> None:
    rewrite(toy, "Fifo.drain", "return []")
    text = screen(toy)
    assert "✗ 00.2" in text and "✓ 00.1" in text and "1 task: unchanged" in text


def test_what_a_part_has_found_is_kept_beside_the_rest(toy: Course) -> None:
    """A run of one task is a whole run: the next one has nothing left to do."""
    right = "return [self.items.popleft() for _ in range(min(number, len(self.items)))]"
    rewrite(toy, "Fifo.drain", right)
    assert list(kept(toy).tasks) == ["00.1"]
    assert "1 task: unchanged" in screen(toy)
    assert list(kept(toy).tasks) == ["00.1", "00.2"]
    assert "2 tasks: unchanged" in screen(toy)


def test_a_failure_runs_again_though_nothing_has_changed(toy: Course) -> None:
    rewrite(toy, "Fifo.drain", "return []")
    screen(toy)
    assert list(kept(toy).tasks) == ["00.1"]
    assert "yours" in screen(toy), "the failure is shown in full again"


def test_comments_and_blank_lines_are_no_change(toy: Course) -> None:
    edit(toy, "class Fifo", "# a thought\n\n\nclass Fifo")
    assert set(kept(toy).tasks) == {"00.1", "00.2"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from collections import deque", "from collections import deque\n\nLIMIT = 3"),
        ("budget: int, limit: int", "budget: int, limit: int = 8"),
        ("    @property\n", "    @property\n    @no_such_name\n"),
        ("class Fifo:", "def another() -> int:\n    return 1\n\n\nclass Fifo:"),
    ],
)
def test_what_stands_outside_of_functions_counts_for_all(toy: Course, old: str, new: str) -> None:
    edit(toy, old, new)
    assert not kept(toy).tasks


def test_a_file_that_is_no_python_keeps_nothing(toy: Course) -> None:
    edit(toy, "class Fifo:", "class Fifo")
    assert not kept(toy).tasks


@pytest.mark.parametrize("name", ["toy/__init__.py", "tests/public/00-toy/test_toy.py"])
def test_engine_and_tests_count_for_all(toy: Course, name: str) -> None:
    with (toy.root / name).open("a") as file:
        file.write("\n# another\n")
    assert not kept(toy).tasks


def test_the_notebook_runs_again_if_a_cell_or_what_it_enters_changes(toy: Course) -> None:
    assert kept(toy).notebook is not None
    path = toy.root / "labs/00-toy/lab.ipynb"
    path.write_text(path.read_text().replace("waste = ...", "waste = 15"))
    assert kept(toy).notebook is None and len(kept(toy).tasks) == 2
    screen(toy)
    assert "2 tasks and the notebook: unchanged since" in screen(toy)


def test_a_notebook_that_is_torn_in_another_way_is_read_again(toy: Course) -> None:
    """Both are no JSON at the same place, so the error alone does not tell them apart."""
    path = toy.root / "labs/00-toy/lab.ipynb"
    path.write_text("<<<<<<< yours\n" + path.read_text())
    assert "holds an unresolved merge" in screen(toy)
    path.write_text("")
    assert "holds an unresolved merge" not in screen(toy)


def test_a_run_that_was_cut_off_leaves_no_verdict(toy: Course) -> None:
    """`drain` hangs: the tests behind it may not have run."""
    rewrite(toy, "Fifo.drain", "while True:\n    number += 0")
    rewrite(toy, "clamp", "return max(min(wanted, budget, limit), 0)")
    text = screen(toy)
    assert "✓ 00.1" in text, "it passes, but in a run that did not come to its end"
    assert not kept(toy).tasks


def test_an_edit_while_the_tests_run_does_not_get_their_verdict(toy: Course) -> None:
    """The digest is that of the files before the run."""
    phase = toy.phase("0")
    verdicts = Verdicts(phase, overlay.mapping_for([phase]))
    rewrite(toy, "clamp", "return 0")
    verdicts.keep("00.1", ["toy.fifo:clamp"], tests=[])
    verdicts.write()
    assert "00.1" not in kept(toy).tasks


ODD = '{"00.1": {"entered": %s, "digest": "a", "when": "b", "tests": []}}'


@pytest.mark.parametrize(
    "text", ["", "[]", '{"00.1": {}}', '{"00.1": 3}', "{", ODD % "3", ODD % '[1, "f"]']
)
def test_a_damaged_store_is_an_empty_one(toy: Course, text: str) -> None:
    (toy.root / ".labkit/verdicts/00-toy.json").write_text(text)
    assert not kept(toy).tasks
    assert WORDS not in screen(toy)


def test_a_function_that_is_entered_before_the_tests_counts_for_all(toy: Course) -> None:
    """A module that calls it when it is loaded: no test enters it, and each depends on it."""
    edit(toy, "class Fifo:", "NONE = clamp(0, 0, 0)\n\n\nclass Fifo:")
    screen(toy)
    stored = json.loads((toy.root / ".labkit/verdicts/00-toy.json").read_text())
    assert "toy.fifo:clamp" in stored["00.2"]["entered"]


def test_a_cached_function_counts_for_all(toy: Course) -> None:
    edit(toy, "from collections import deque", "from collections import deque\nimport functools")
    edit(toy, "def clamp(", "@functools.lru_cache(maxsize=8)\ndef clamp(")
    screen(toy)
    assert len(kept(toy).tasks) == 2
    rewrite(toy, "clamp", "return 0")
    assert not kept(toy).tasks


def test_a_child_of_a_test_tells_what_it_entered(toy: Course) -> None:
    """Its first entry counts for all tests: whose it was cannot be known."""
    write(
        toy.root,
        "tests/public/00-toy/test_child.py",
        """
        import subprocess, sys


        def test_00_1_in_a_child():
            \"\"\"Another process drains.\"\"\"
            code = "from toy.fifo import Fifo; assert Fifo().drain(1) == []"
            assert subprocess.run([sys.executable, "-c", code]).returncode == 0
        """,
    )
    screen(toy)
    stored = json.loads((toy.root / ".labkit/verdicts/00-toy.json").read_text())
    assert "toy.fifo:Fifo.drain" in stored["00.1"]["entered"]
    rewrite(toy, "Fifo.drain", "return [7]")
    assert not kept(toy).tasks


# ---------------------------------------------------------------- marks
SOURCE = '''
from __future__ import annotations
total = 0
def plain(x): return x
def with_doc():
    """Words."""
def counts():
    global total
    total += 1
class Outer:
    """Words."""
    @staticmethod
    def method():
        def inner():
            return 1
        return inner()
    async def later(self):
        return 2
'''


def test_marked_functions_do_what_they_did() -> None:
    space: dict[str, object] = {reach.NAME: reach.enter}
    exec(compile(reach.marked(SOURCE.encode(), "m.py", "m"), "m.py", "exec"), space)
    reach.taken()
    assert space["plain"](3) == 3 and space["with_doc"]() is None  # type: ignore[operator]
    assert space["with_doc"].__doc__ == "Words."
    space["counts"]()  # type: ignore[operator]
    assert space["total"] == 1
    assert space["Outer"].method() == 1  # type: ignore[attr-defined]
    assert reach.taken() == {"m:plain", "m:with_doc", "m:counts", "m:Outer.method"}
    assert space["plain"].__code__.co_firstlineno == 4  # type: ignore[attr-defined]


def chain(length: int) -> str:
    """A function that is nested as deep as it is long."""
    more = "".join(f"    elif x == {n}:\n        return {n}\n" for n in range(1, length))
    return f"\n\ndef own(x):\n    if x == 0:\n        return 0\n{more}"


@pytest.mark.parametrize("length", [400, 1500])  # too deep for a digest; and for a marked tree
def test_a_long_chain_is_judged_and_runs_again_with_any_change(toy: Course, length: int) -> None:
    text = lab(toy).read_text(encoding="utf-8") + chain(length)
    lab(toy).write_text(text, encoding="utf-8")
    assert "public 5/5" in screen(toy)
    assert list(kept(toy).tasks) == ["00.1", "00.2"]
    edit(toy, "return max(smallest, 0)", "return smallest")
    assert kept(toy).tasks == {}, "what its tests entered is unknown"
    assert "✗ 00.1" in screen(toy)
