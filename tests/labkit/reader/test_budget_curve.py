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
    assert (round(walls[32]), round(walls[256])) == (1244, 1420)
    assert max(walls, key=walls.__getitem__) == 256
    full = {b: SAVED[b, max(SPEEDS)]["tpot_p99_ms"] for b in BUDGETS}
    assert [round(full[b]) for b in (32, 128, 512)] == [6, 21, 72]
    ceilings = {b: max(SAVED[b, speed]["tpot_p99_ms"] for speed in SPEEDS) for b in BUDGETS}
    assert max(b for b in BUDGETS if ceilings[b] <= 25) == 128
    soon = [b for b in BUDGETS if any(
        SAVED[b, s]["tokens_per_s"] >= 1235 and SAVED[b, s]["ttft_p99_ms"] < 1000 for s in SPEEDS
    )]  # fmt: skip
    assert soon == [512]


def test_the_prediction_has_the_answer_that_the_chapter_gives() -> None:
    """A token every 10 ms at 1,300 tokens a second: 32 is too slow, 64 comes a little late."""
    walls = {b: max(SAVED[b, speed]["tokens_per_s"] for speed in SPEEDS) for b in BUDGETS}
    assert walls[32] < 1300 < walls[64]
    behind = [SAVED[64, s] for s in SPEEDS if SAVED[64, s]["tokens_per_s"] >= 1300]
    assert all(round(one["tpot_p99_ms"]) == 11 for one in behind)
