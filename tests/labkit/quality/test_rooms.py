"""How the house is built, counted from the imports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.course.root import ROOT
from labkit.quality import rooms
from tests.labkit.toy_course import write

HOUSE = {
    "labkit/__init__.py": "",
    "labkit/top.py": "from labkit.middle import door\nimport labkit.low.floor\n",
    "labkit/middle/__init__.py": "",
    "labkit/middle/door.py": "def use():\n    from labkit.low import floor\n",
    "labkit/low/__init__.py": "",
    "labkit/low/floor.py": "from __future__ import annotations\n",
}


def make_house(folder: Path, **more: str) -> rooms.Graph:
    for name, text in (HOUSE | more).items():
        write(folder, name, text)
    return rooms.imports_of(folder / "labkit")


def test_rooms_floors_and_arrows(tmp_path: Path) -> None:
    """An import inside a function counts, and one of a package's file is one of its room."""
    found = rooms.between_rooms(make_house(tmp_path))
    assert found == {
        "labkit.top": {"labkit.middle", "labkit.low"},
        "labkit.middle": {"labkit.low"},
        "labkit.low": set(),
    }
    assert rooms.floors(found) == [["labkit.low"], ["labkit.middle"], ["labkit.top"]]
    assert rooms.circles(found) == []


def test_a_circle_is_named_and_stands_on_one_floor(tmp_path: Path) -> None:
    up = {"labkit/low/floor.py": "from ..middle import door\n"}
    modules = make_house(tmp_path, **up)
    assert rooms.circles(modules) == [["labkit.low.floor", "labkit.middle.door"]]
    found = rooms.between_rooms(modules)
    assert rooms.floors(found) == [["labkit.low", "labkit.middle"], ["labkit.top"]]


def test_code_lines_are_lines_of_code(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        '"""Doc\n\nmore."""\n\n# why\nx = (\n    1,\n\n    2,\n)  # two\ny = """a\nb"""\n'
    )
    assert rooms.code_lines(path) == 6


def test_this_house_has_no_circle_and_labkit_six_floors() -> None:
    labkit, engine = rooms.look(ROOT)
    assert rooms.circles(labkit.modules) == rooms.circles(engine.modules) == []
    assert len(rooms.floors(rooms.between_rooms(labkit.modules))) == 6
    assert engine.longest_lines <= 400, engine.longest


def test_a_commit_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no-such-commit: .*; give a commit"):
        rooms.at("no-such-commit", tmp_path)


def test_contributing_names_every_room_and_counts_them() -> None:
    labkit, _ = rooms.look(ROOT)
    names = [name.rpartition(".")[2] for name in rooms.between_rooms(labkit.modules)]
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## Labkit's rooms")[2].partition("\n## ")[0]
    missing = {name for name in names if not re.search(rf"`{name}(\.py)?`", section)}
    assert missing <= {"__main__"}
    assert f"Now there are {len(names)}, on" in section
