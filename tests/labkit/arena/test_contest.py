"""A contest: policies from files run in a child, and one that breaks a rule is disqualified."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.arena.contest import Match, decode_run, encode_run, play
from labkit.arena.cost import CostModel
from labkit.arena.score import score

CHEATERS = Path(__file__).parent / "cheaters.py"
PRICES = CostModel((2e-3, 5e-4, 8e-5, 2e-8, 4e-4, 5e-7, 5e-5, 3e-5), {"name": "round"})


@pytest.fixture
def match(tmp_path: Path) -> Match:
    PRICES.save(tmp_path / "prices.json")
    return Match("vllm-v1", "bursts", 0, 40, str(tmp_path / "prices.json"))


def from_file(match: Match, name: str) -> Match:
    return replace(match, policy=f"{CHEATERS}:{name}")


def test_a_policy_from_a_file_does_as_well_in_its_child_as_here(match: Match) -> None:
    here, there = play(match), play(from_file(match, "Honest"))
    assert there.figures is not None
    assert there.figures == here.figures
    assert there.run == here.run


def test_what_a_policy_prints_is_not_taken_for_an_answer(match: Match) -> None:
    assert play(from_file(match, "Prints")).figures == play(match).figures


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Raises", r"raised AttributeError: .*no_such_thing.* \(in schedule, cheaters.py:\d+\)"),
        ("EndsEarly", "broke a rule: r0 ended"),
        ("Dies", "ended its process with code 7"),
    ],
)
def test_a_policy_that_fails_is_disqualified_with_the_reason(
    match: Match, name: str, why: str
) -> None:
    outcome = play(from_file(match, name))
    assert outcome.figures is None and outcome.run is None
    assert outcome.disqualified is not None
    assert re.search(why, outcome.disqualified), outcome.disqualified


@pytest.mark.serial
def test_an_endless_loop_is_cut_and_its_place_named(match: Match) -> None:
    outcome = play(from_file(match, "Hangs"), seconds=15)
    assert outcome.disqualified is not None
    said = "took more than 15 s of processor time; it stood in schedule, cheaters.py:"
    assert said in outcome.disqualified


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("vllm-v2", "no scheduler 'vllm-v2'; did you mean 'vllm-v"),
        (f"{CHEATERS}:Onest", "did you mean 'Honest'"),
        (f"{CHEATERS}:not_a_scheduler", "is no scheduler; make it a subclass"),
        ("nowhere.py:Mine", "there is no Python file nowhere.py"),
    ],
)
def test_a_policy_that_is_not_there_is_a_wrong_argument(
    match: Match, policy: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        play(replace(match, policy=policy))


def test_a_run_survives_its_way_out_of_the_child(match: Match) -> None:
    run = play(match).run
    assert run is not None
    assert decode_run(json.loads(json.dumps(encode_run(run)))) == run


def test_the_baseline_scores_one(match: Match) -> None:
    result = score("vllm-v1", "bursts", [0, 1], 40, Path(match.cost_model))
    assert result.ratio == 1.0
    assert [row.seed for row in result.rows] == [0, 1]


def test_a_better_policy_scores_more_and_a_worse_one_less(match: Match) -> None:
    """Under these prices whole batches are worse than continuous ones on urgent work."""
    worse = score("static", "priorities", [0], 120, Path(match.cost_model))
    assert 0 < worse.ratio < 0.9


def test_a_cheat_scores_zero(match: Match) -> None:
    result = score(f"{CHEATERS}:PretendsCached", "bursts", [3], 40, Path(match.cost_model))
    assert result.ratio == 0.0
    assert result.disqualified is not None
    assert result.disqualified.startswith("broke a rule: ")
    assert result.disqualified.endswith("(seed 3)")


def test_a_score_needs_a_seed(match: Match) -> None:
    with pytest.raises(ValueError, match="seeds is empty"):
        score("vllm-v1", "bursts", [])
