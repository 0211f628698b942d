"""What Python knows of a learner's file and no test would say: the screen passes it on."""

from __future__ import annotations

import pytest

from labkit.course.manifest import Course
from tests.labkit.learner.test_commands import says, screen
from tests.labkit.learner.test_kindness import shown
from tests.labkit.toy_course import lab, rewrite, solve


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("def later():\n    await clamp(1, 2, 3)", "has the `async` before its `def` gone"),
        ("return clamp", "is the line indented far enough"),
        ("async def each():\n    yield 1\n    return 2", "gives each value by a `yield`"),
        ("def both(a, a): ...", "duplicate argument 'a'"),
        ("def mixed():\n    if 1:\n\tpass", "indent with four blanks everywhere"),
        ("def far():\n    a = 1\n      b = 2", "further to the right than the one above it"),
        ("def none():\npass", "begins four blanks further to the right"),
        ("def odd():\n    if 1:\n        pass\n      pass", "count its blanks"),
        ("from __future__ import annotations", "which must be the first: move it below"),
    ],
    ids=[
        "await",
        "return",
        "async generator",
        "argument",
        "tabs",
        "further",
        "block",
        "unindent",
        "future",
    ],
)
def test_what_only_the_compiler_finds_is_no_python_either(
    toy: Course, line: str, said: str
) -> None:
    """`ast.parse` lets most of these pass, and each test failed with the whole of it."""
    with lab(toy).open("a", encoding="utf-8") as file:
        file.write(f"\n\n{line}\n")
    text = " ".join(screen(toy)[0].split())
    assert "labs/00-toy/fifo.py:" in text and "is not Python yet" in text and said in text
    assert "next: mend line" in text


def test_what_python_warns_of_is_a_note(toy: Course) -> None:
    solve(toy)
    assert "Python warns" not in screen(toy)[0]
    rewrite(toy, "clamp", "return 0 if limit is 4 else max(min(wanted, budget, limit), 0)")
    text = screen(toy)[0]
    says(text, "✗ 00.1", "note: labs/00-toy/fifo.py:", 'Python warns: "is" with')


def test_a_coroutine_that_is_not_awaited_is_named_with_its_line(toy: Course) -> None:
    """Nothing of it runs, and all that a test sees is that nothing has happened."""
    solve(toy)
    body = "async def inner():\n    return 4\n\ninner()\nreturn 0"
    rewrite(toy, "clamp", body)
    number = lab(toy).read_text().splitlines().index("    inner()") + 1
    text = " ".join(shown(toy, task="1").split())
    assert f"called in fifo.py:{number} is `async` and was not awaited" in text
    assert "put `await` before the call" in text


def test_a_task_that_waits_for_another_leads_to_it(toy: Course) -> None:
    """Judged alone, it said that the whole phase was to be judged, and nothing of the other."""
    solve(toy, "Fifo.head", "Fifo.drain")
    text = shown(toy, task="2")
    says(text, "… 00.2", "waits for 00.1", "next: write 00.1 as well, which this task calls")
    says(text, "labs/00-toy/fifo.py:", "(clamp), then make lab-00")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return self.items.extend([])", "`extend` in line"),
        ("self.items = self.items.reverse()\nreturn [self.items.popleft()]", "`reverse` in line"),
    ],
    ids=["returned", "kept"],
)
def test_what_a_method_that_changes_its_list_returns_is_told(
    toy: Course, body: str, said: str
) -> None:
    """The line that fails then is another one, and says no more than NoneType."""
    solve(toy)
    rewrite(toy, "Fifo.drain", body)
    text = " ".join(shown(toy, task="2").split())
    assert said in text and "changes its list and returns None: leave it alone" in text


def test_an_error_points_to_the_line_that_caused_it(toy: Course) -> None:
    """Not the line that refuses, as it should."""
    solve(toy)
    refusal = 'if len(self.items) == 1:\n    raise IndexError("too late")\n'
    rewrite(toy, "Fifo.head", refusal + "return self.items[0] if self.items else None")
    rewrite(toy, "Fifo.drain", "taken = [self.head]\nself.items.clear()\nself.push(9)\nself.head")
    text = shown(toy, task="2")
    says(text, "IndexError: too late", "(Fifo.drain), then make lab-00")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("return smalest", "Did you mean `smallest`?"),
        ("import math; return math.flor(smallest)", "Did you mean `floor`?"),
        ("import torch; return torch.wher(smallest)", "Did you mean `where`?"),
        ("taken = []; taken.push(smallest)", "no attribute 'push'"),
        ("return mx(smallest, 0)", "Did you mean `max`?"),
        ("return something_else", "name 'something_else' is not defined"),
    ],
)
def test_a_name_that_is_nearly_right_is_named(toy: Course, line: str, said: str) -> None:
    config = toy.root / "phases/00-toy/phase.toml"
    manifest = config.read_text().replace("test_seconds = 1\n", "test_seconds = 60\n")
    config.write_text(manifest)  # on a busy machine, importing torch takes longer than a second
    solve(toy)
    rewrite(toy, "clamp", f"smallest = min(wanted, budget, limit)\n{line}")
    shown = screen(toy)[0]
    says(shown, "✗ 00.1", said)
    assert ("Did you mean" in shown) == ("Did you mean" in said)


def test_a_lone_name_of_an_attribute_is_told_whose_it_is(toy: Course) -> None:
    solve(toy)
    rewrite(toy, "Fifo.drain", "return [items.popleft() for _ in range(number)]")
    says(screen(toy)[0], "✗ 00.2", "name 'items' is not defined", "Did you mean `self.items`?")
    rewrite(toy, "Fifo.drain", "def one():\n    return sel.items.popleft()\nreturn [one()]")
    says(screen(toy)[0], "✗ 00.2", "name 'sel' is not defined", "Did you mean `self`?")
