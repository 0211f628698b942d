"""docs/arena.md says what the command says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.arena import page
from labkit.arena.cli import make_matches, play_all
from labkit.arena.contest import ENTRANTS
from labkit.arena.cost import load_model
from labkit.arena.report import figures_table
from labkit.arena.workloads import WORKLOADS


def test_the_table_of_one_workload_is_what_the_command_writes() -> None:
    outcomes = play_all(make_matches(list(ENTRANTS), ["bursts"], page.SEED, 0))
    table = figures_table(WORKLOADS["bursts"], outcomes)
    assert table in page.PAGE.read_text(encoding="utf-8"), "run: python -m labkit arena docs"


@pytest.mark.slow
def test_every_table_is_what_the_command_writes() -> None:
    outcomes = play_all(make_matches(list(ENTRANTS), list(WORKLOADS), page.SEED, 0))
    parts = page.blocks(outcomes, load_model())
    assert page.differences(page.PAGE, parts) == []


def test_the_prices_on_the_page_are_those_of_the_file() -> None:
    assert page.prices(load_model()) in page.PAGE.read_text(encoding="utf-8")


def test_every_picture_of_the_page_is_there() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert len(pictures) == 3
    assert all((page.PAGE.parent / name).is_file() for name in pictures)


def test_generated_parts_replace_the_old_ones_and_nothing_else(tmp_path: Path) -> None:
    old = "before\n<!-- arena:goodput -->\nold\nlines\n<!-- /arena:goodput -->\nafter\n"
    new = page.fill(old, {"goodput": "new \\1"})
    assert new == "before\n<!-- arena:goodput -->\nnew \\1\n<!-- /arena:goodput -->\nafter\n"
    path = tmp_path / "page.md"
    path.write_text(old)
    assert page.differences(path, {"goodput": "old\nlines"}) == []
    assert page.differences(path, {"goodput": "old\nline"}) == ["page    lines\ncommand line"]
    assert "number of lines" in page.differences(path, {"goodput": "old"})[-1]
    with pytest.raises(ValueError, match="0 places for arena:prices"):
        page.fill(old, {"prices": "x"})
