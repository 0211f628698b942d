"""A whole course in a temporary folder: one package, one ready phase, one planned phase. No real
phase is needed to test the tools."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from labkit.course import sync
from labkit.course.manifest import Course
from labkit.course.root import ROOT
from labkit.inside import child

ENGINE = '''
"""A queue and a clamp."""

from __future__ import annotations

from collections import deque


def clamp(wanted: int, budget: int, limit: int) -> int:
    """Tokens that fit: at most `budget`, at most `limit`; never below 0."""
    # both bounds count
    smallest = min(wanted, budget, limit)
    return max(smallest, 0)


class Fifo:
    """First in, first out."""

    def __init__(self) -> None:
        self.items: deque[int] = deque()

    def push(self, item: int) -> None:
        """Put an item at the end."""
        self.items.append(item)

    # The oldest item leaves first.
    @property
    def head(self) -> int | None:
        """The item that leaves next; None if there is none."""
        if not self.items:
            return None
        return self.items[0]

    def drain(self, number: int) -> list[int]:
        """Take out up to `number` items."""
        taken = []
        while self.items and len(taken) < number:
            taken.append(self.items.popleft())
        return taken
'''

MANIFEST = """
slug = "00-toy"
title = "A toy"
question = "What leaves first?"
status = "ready"
hours = 1
modules = ["toy.fifo"]
upstream = ["vllm/v1/core/sched/request_queue.py"]
notebook = "notebook.py"
test_seconds = 1

[[exercises]]
id = "00.1"
title = "Clamp"
module = "toy.fifo"
functions = ["clamp"]
points = 5
read = "02-mini-build.md#task-1"
upstream = "vllm/v1/core/sched/scheduler.py#L1-L2 (Scheduler.schedule)"

[[exercises]]
id = "00.2"
title = "Leave in order"
module = "toy.fifo"
functions = ["Fifo.head", "Fifo.drain"]
points = 10
read = "02-mini-build.md#task-2"
"""

HINTS = """
["00.1"]
hints = ["Two bounds.", "Never above either.", "In clamp.", "min, then max with 0."]

["00.1".tests]
test_00_1_limit_bounds = "Two numbers bound it: did you compare with the budget alone?"

["00.2"]
hints = ["Order.", "Oldest first.", "In Fifo.", "popleft while there are items."]
"""

PLANNED = """
slug = "01-later"
title = "Later"
question = "When?"
status = "planned"
coming = ["a clock", "a calendar"]
"""

TESTS = '''
"""Public tests of the toy."""

from labkit.testing import expect
from toy.fifo import Fifo, clamp


def filled():
    fifo = Fifo()
    for item in (1, 2, 3):
        fifo.push(item)
    return fifo


def test_00_1_budget_bounds():
    """The budget bounds what fits."""
    expect(clamp(10, 4, 8), 4, at="10 wanted, 4 in the budget", budget=4, limit=8)


def test_00_1_limit_bounds():
    """The limit bounds what fits."""
    expect(clamp(10, 8, 4), 4, at="10 wanted, limit 4")


def test_00_1_never_negative():
    """No room is 0, not less."""
    assert clamp(3, -1, 8) == 0, "a negative budget gives 0"


def test_00_2_head_is_oldest():
    """The head is the oldest item."""
    assert filled().head == 1
    assert Fifo().head is None


def test_00_2_drain_in_order():
    """Items leave in the order they came."""
    fifo = filled()
    expect(fifo.drain(2), [1, 2], at="two of three leave")
    expect(fifo.drain(clamp(5, 5, 5)), [3], at="the rest leaves")
'''

HIDDEN = """
from labkit.process.worker import Program


def test_00_1_clamp_matches(subject, reference):
    program = Program()
    for wanted in range(-2, 6):
        program.see(program.call("toy.fifo:clamp", wanted, 3, 4))
    assert subject.run(program) == reference.run(program)


def test_00_2_drain_matches(subject, reference):
    program = Program()
    fifo = program.new("toy.fifo:Fifo")
    fifo.push(4)
    fifo.push(5)
    program.see(fifo.head)
    program.see(fifo.drain(9))
    assert subject.run(program) == reference.run(program)
"""

MUTANTS = """
[[mutants]]
exercise = "00.1"
name = "budget-forgotten"
misconception = "Your clamp obeys the limit but forgets the budget."
function = "clamp"
search = "min(wanted, budget, limit)"
replace = "min(wanted, limit)"

[[mutants]]
exercise = "00.1"
name = "negative"
misconception = "Your clamp goes below zero."
function = "clamp"
body = "return min(wanted, budget, limit)"

[[mutants]]
exercise = "00.2"
name = "newest-first"
misconception = "Your queue is a stack: the newest item leaves first."
function = "Fifo.drain"
search = "popleft"
replace = "pop"

[[mutants]]
exercise = "00.2"
name = "head-is-tail"
misconception = "Your head is the newest item."
function = "Fifo.head"
search = "self.items[0]"
replace = "self.items[-1]"
"""

NOTEBOOK = """
# %% [markdown]
# # A toy
# Two questions.

# %% tags=["setup"]
import math

# %% tags=["todo"] task="N1" title="Blocks of a request"
def blocks(tokens, size):
    # BEGIN SOLUTION
    return math.ceil(tokens / size)
    # END SOLUTION

# %% tags=["check"] task="N1"
check(blocks(17, 16), 2, "token 17 needs a second block")

# %% tags=["predict"] task="P1" title="Free blocks"
guess = predict("P1", 7, "How many?")  # SOLUTION: guess = predict("P1", ..., "How many?")

# %% tags=["todo"] task="N2" title="Waste"
waste = 32 - 17  # SOLUTION

# %% tags=["check"] task="N2"
check(waste, 15, "two blocks hold 32 tokens")

# %%
print("experiment")
score("P1", 7)
"""

CHAPTER = """# Build

## Task 1: clamp
In `labs/00-toy/fifo.py`, write `clamp`. Then `make lab-00`.

## Task 2: leave in order
Write `Fifo.head` and `Fifo.drain`.
"""


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")


def make_course(root: Path) -> Course:
    """Write the toy course and generate its skeletons."""
    write(root, "toy/__init__.py", "")
    write(root, "toy/fifo.py", ENGINE)
    write(root, "phases/00-toy/phase.toml", MANIFEST)
    write(root, "phases/00-toy/hints.toml", HINTS)
    write(root, "phases/01-later/phase.toml", PLANNED)
    write(root, "phases/00-toy/notebook.py", NOTEBOOK)
    for chapter in ("00-guide.md", "01-deep-dive.md", "03-labs.md"):
        write(root, f"phases/00-toy/{chapter}", "# Chapter\n")
    write(root, "phases/00-toy/02-mini-build.md", CHAPTER)
    write(root, "tests/public/00-toy/test_toy.py", TESTS)
    write(root, "tests/hidden/00-toy/test_toy_hidden.py", HIDDEN)
    write(root, "tests/conftest.py", (ROOT / "tests/conftest.py").read_text(encoding="utf-8"))
    write(root, "tests/corpora/mutants/00-toy.toml", MUTANTS)
    course = Course(root)
    sync.sync(course)
    return course


def lab(course: Course) -> Path:
    return course.root / "labs/00-toy/fifo.py"


def solve(course: Course, *names: str) -> None:
    """Copy functions of the engine into the lab file: all of them if none is named."""
    from labkit.course import source

    reference = (course.root / "toy/fifo.py").read_text(encoding="utf-8")
    text = lab(course).read_text(encoding="utf-8")
    for name in names or ("clamp", "Fifo.head", "Fifo.drain"):
        function = source.find(reference, name)
        text = source.replace_function(text, name, source.function_text(reference, function))
    lab(course).write_text(text, encoding="utf-8")


def rewrite(course: Course, name: str, body: str) -> None:
    """Give one function of the lab file another body."""
    from labkit.course import source

    text = lab(course).read_text(encoding="utf-8")
    lab(course).write_text(source.replace_body(text, name, body), encoding="utf-8")


def noted_ends(monkeypatch: pytest.MonkeyPatch) -> list[child.Finished]:
    """How each child that `child.run` waits for ends from now on: by itself, or by its limit."""
    ended: list[child.Finished] = []
    usual = child.run

    def run(*args: Any) -> child.Finished:
        ended.append(usual(*args))
        return ended[-1]

    monkeypatch.setattr(child, "run", run)
    return ended
