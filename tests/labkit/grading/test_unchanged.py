"""Names outside a submission that were given to something else: found, and nothing else is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from labkit.inside.unchanged import Watch

TOOLS = """
from functools import cache, wraps
from dataclasses import dataclass

MOST = 7
_GROUP = None
count = 0


def noisy(function):
    @wraps(function)
    def inner(*args):
        return function(*args)
    return inner


@noisy
def loud(x):
    return x


@cache
def double(x):
    return 2 * x


def plain(x):
    return x + 1


@dataclass(slots=True)
class Box:
    size: int = 0

    @property
    def half(self):
        return self.size / 2

    @staticmethod
    def empty():
        return Box()


class Crate(Box):
    pass
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Imports `toys.tools`, and before it `toys.task`, the submission, which does what it likes."""
    for name, text in (("__init__", ""), ("tools", TOOLS), ("task", "import sys\n")):
        (tmp_path / "toys" / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / "toys" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def load() -> Any:
        import toys.task  # type: ignore[import-not-found]
        import toys.tools  # type: ignore[import-not-found]

        return toys.tools

    yield load
    for name in ("toys", "toys.tools", "toys.task"):
        sys.modules.pop(name, None)


@pytest.fixture
def watch(tmp_path: Path, engine: Any) -> Watch:
    return Watch(["statistics"], ["toys.task"], [str(tmp_path)])


def test_nothing_is_found_where_nothing_was_done(watch: Watch, engine: Any) -> None:
    assert watch.replaced() == ""
    tools = engine()
    tools.count += 1
    tools._GROUP = tools.Box()
    assert watch.replaced() == ""
    tools._GROUP = None
    tools.double(3)
    assert tools.Crate(4).half == 2 and watch.replaced() == ""
    vars(sys.modules["toys.task"])["mine"] = len  # the submission's names are its own
    assert watch.told() == ("end", '""')


REPLACED: list[tuple[Any, str, Any, str]] = [
    (None, "mean", lambda data: 0, "statistics.mean"),
    (None, "NormalDist", SimpleNamespace, "statistics.NormalDist"),
    ("NormalDist", "pdf", lambda self, x: 0.0, "statistics.NormalDist.pdf"),
    ("StatisticsError", "__eq__", lambda self, other: True, "statistics.StatisticsError.__eq__"),
]


@pytest.mark.parametrize(("owner", "name", "value", "found"), REPLACED)
def test_what_was_there_before(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any, found: str
) -> None:
    import statistics

    place = getattr(statistics, owner) if owner else statistics
    monkeypatch.setattr(place, name, value)
    assert watch.replaced() == found
    monkeypatch.undo()
    assert watch.replaced() == "", "and it is given back"


@pytest.mark.parametrize(
    ("part", "value"),
    [("__code__", (lambda data, weights=None: 0).__code__), ("__defaults__", ([1.0],))],
)
def test_a_function_with_other_insides(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, part: str, value: Any
) -> None:
    import statistics

    monkeypatch.setattr(statistics.fmean, part, value)
    assert watch.replaced() == "statistics.fmean"


def test_another_module_of_the_same_names(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    import statistics

    twin = ModuleType("statistics")
    vars(twin).update(vars(statistics))
    with monkeypatch.context() as moment:
        moment.setitem(sys.modules, "statistics", twin)
        assert watch.replaced() == "statistics"
    monkeypatch.setattr(statistics, "__class__", type("Elsewhere", (ModuleType,), {}))
    assert watch.replaced() == "statistics"


def test_what_was_given_back_is_told(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    import statistics

    with monkeypatch.context() as moment:
        moment.setattr(statistics, "mean", print)
        assert watch.told() == ("end", '"statistics.mean"')
    assert watch.replaced() == "" and watch.told() == ("end", '"statistics.mean"')


@pytest.mark.parametrize(
    "line", ["import tracemalloc", "from sys import settrace as ours", "sys._getframe().f_back"]
)
def test_what_counts_is_not_named(watch: Watch, engine: Any, tmp_path: Path, line: str) -> None:
    (tmp_path / "toys" / "task.py").write_text(f"import sys\n\n\ndef f():\n    {line}\n")
    engine()
    assert watch.replaced() in ("tracemalloc", "settrace", "_getframe")


def test_limits_of_others_stay(watch: Watch, engine: Any) -> None:
    tools = engine()
    assert watch.replaced() == ""
    tools.MOST = 10**9
    assert watch.replaced() == "toys.tools.MOST"


@pytest.mark.parametrize("name", ["plain", "loud", "double", "Box", "Box.half", "Crate.half"])
@pytest.mark.parametrize("at_once", [True, False], ids=["before a look", "later"])
def test_what_comes_later_has_the_code_of_its_file(
    watch: Watch, engine: Any, name: str, at_once: bool
) -> None:
    tools = engine()
    if not at_once:
        assert watch.replaced() == ""
    owner, _, last = name.rpartition(".")

    def mine(*_: Any) -> int:
        return 0

    mine.__module__ = "toys.task"
    value = property(mine) if last == "half" else mine
    setattr(getattr(tools, owner) if owner else tools, last, value)
    assert watch.replaced() == f"toys.tools.{name}"


def test_what_steps_set_is_no_fault(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    import statistics

    monkeypatch.setattr(statistics, "mean", print)
    monkeypatch.setattr(statistics, "mode", print)
    watch.allow([{"set": ["name", "statistics:x"], "attribute": "mean", "value": 1}])
    assert watch.replaced() == "statistics.mode"
    call = {"call": ["name", "builtins:setattr"], "args": [["value", 1], ["plain", "mode"], []]}
    watch.allow([call])
    assert watch.replaced() == ""


def test_a_module_that_is_none(watch: Watch, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine()
    fake = ModuleType("toys.tools")
    vars(fake)["plain"] = lambda x: 0
    with monkeypatch.context() as moment:
        moment.setitem(sys.modules, "toys.tools", fake)
        assert watch.replaced() == "toys.tools.plain"


def test_what_is_no_module(watch: Watch, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine()
    with monkeypatch.context() as moment:
        moment.setitem(sys.modules, "toys.tools", SimpleNamespace())  # type: ignore[arg-type]
        assert watch.replaced() == "a module (KeyError)"
