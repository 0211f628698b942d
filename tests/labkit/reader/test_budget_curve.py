"""The sweep of `benchmarks/budget_curve.py`: what was saved is what comes out, on every machine."""

from __future__ import annotations

import json

import pytest

from benchmarks.budget_curve import BUDGETS, PATH, SPEEDS, point

SAVED = {
    (one["budget"], one["speed"]): one for one in json.loads(PATH.read_text("utf-8"))["results"]
}


def test_all_points_were_saved() -> None:
    assert set(SAVED) == {(budget, speed) for budget in BUDGETS for speed in SPEEDS}


@pytest.mark.parametrize(("budget", "speed"), [(32, 3.0), (128, 1.0), (512, 1.5), (2048, 0.5)])
def test_a_point_comes_out_as_it_was_saved(budget: int, speed: float) -> None:
    assert point(budget, speed) == SAVED[budget, speed]


def test_the_chapter_reads_the_curve_rightly() -> None:
    walls = {b: max(SAVED[b, speed]["tokens_per_s"] for speed in SPEEDS) for b in BUDGETS}
    assert (round(walls[32]), round(walls[512])) == (518, 874)
    assert max(walls, key=walls.__getitem__) == 512
    ceilings = {b: max(SAVED[b, speed]["tpot_p99_ms"] for speed in SPEEDS) for b in BUDGETS}
    assert [round(ceilings[b]) for b in (32, 128)] == [15, 38]
    within = [b for b in BUDGETS if ceilings[b] <= 40]
    assert max(within) == 128
    soon = [b for b in BUDGETS if any(
        SAVED[b, s]["tokens_per_s"] > 700 and SAVED[b, s]["ttft_p99_ms"] < 1000 for s in SPEEDS
    )]  # fmt: skip
    assert soon == [512]
