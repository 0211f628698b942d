"""docs/arena.md says what the command says."""

from __future__ import annotations

import re

import pytest

from labkit.arena import page
from labkit.arena.cli import make_matches, play_all
from labkit.arena.contest import ENTRANTS
from labkit.arena.cost import load_model
from labkit.arena.report import figures_table
from labkit.arena.workloads import WORKLOADS
from labkit.course import blocks


def test_the_table_of_one_workload_is_what_the_command_writes() -> None:
    outcomes = play_all(make_matches(list(ENTRANTS), ["bursts"], page.SEED, 0))
    table = figures_table(WORKLOADS["bursts"], outcomes)
    assert table in page.PAGE.read_text(encoding="utf-8"), "run: python -m labkit docs figures"


@pytest.mark.slow
def test_every_table_is_what_the_command_writes() -> None:
    outcomes = play_all(make_matches(list(ENTRANTS), list(WORKLOADS), page.SEED, 0))
    parts = page.blocks(outcomes, load_model())
    assert blocks.differences(page.PAGE, parts) == []


def test_the_prices_on_the_page_are_those_of_the_file() -> None:
    assert page.prices(load_model()) in page.PAGE.read_text(encoding="utf-8")


def test_every_picture_of_the_page_is_there() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert len(pictures) == 3
    assert all((page.PAGE.parent / name).is_file() for name in pictures)
