"""`python -m labkit arena`: its screens, its files, and what it says to wrong arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from labkit.arena import cli, leaderboard
from labkit.arena.cost import CostModel
from tests.labkit.arena.test_contest import CHEATERS, PRICES

Arena = Callable[..., Result]


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arena:
    """The command with round prices and a leaderboard of its own, in a wide terminal."""
    PRICES.save(tmp_path / "prices.json")
    monkeypatch.setattr(leaderboard, "FILE", tmp_path / "board.json")
    monkeypatch.setattr(cli.console, "width", 120)

    def run(*words: str, priced: bool = True) -> Result:
        prices = ["--cost-model", str(tmp_path / "prices.json")] if priced else []
        return CliRunner().invoke(cli.app, [*words, *prices])

    return run


def test_a_race_shows_a_column_for_each_policy_and_out_goes_the_cheat(arena: Arena) -> None:
    done = arena(
        "--policies", "static,vllm-v1", "--workloads", "bursts", "--requests", "40",
        "--scheduler", f"{CHEATERS}:EndsEarly",
    )  # fmt: skip
    assert done.exit_code == 1
    assert "bursts: 30 to 60 cases" in done.output
    assert "seed 0 · 40 requests · SLO: TTFT ≤ 900 ms" in done.output
    header = next(line for line in done.output.splitlines() if "static" in line)
    assert header.split() == ["static", "vllm-v1"]
    for label in ("goodput", "TTFT p99", "TPOT p50", "E2E p90", "fairness (Jain)"):
        assert f"\n {label}" in done.output
    assert "✗ cheaters.py:EndsEarly is disqualified: it broke a rule" in done.output


def test_results_are_kept_by_workload_and_seed(arena: Arena, tmp_path: Path) -> None:
    race = ["--policies", "static,vllm-v1", "--workloads", "bursts", "--requests", "30", "--save"]
    assert arena(*race).exit_code == 0
    assert arena(*race, "--seed", "1", "--scheduler", f"{CHEATERS}:Raises").exit_code == 1
    assert arena(*race).exit_code == 0  # the same once more replaces its entries
    entries = json.loads((tmp_path / "board.json").read_text())
    keys = [(e["seed"], e["policy"].split(":")[-1], bool(e["source"])) for e in entries]
    assert sorted(keys) == [
        (0, "static", False), (0, "vllm-v1", False),
        (1, "Raises", True), (1, "static", False), (1, "vllm-v1", False),
    ]  # fmt: skip
    shown = arena("--leaderboard", priced=False)
    assert shown.exit_code == 0
    assert "bursts · seed 0 · 30 requests · prices round@" in shown.output
    assert "✗" in shown.output and "cheaters.py:Raises @" in shown.output


def test_an_empty_leaderboard_says_how_to_fill_it(arena: Arena) -> None:
    assert "`python -m labkit arena --save` fills it" in arena("--leaderboard", priced=False).output


def test_a_broken_leaderboard_is_not_overwritten(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "board.json").write_text("[1, 2")
    done = arena("--leaderboard", priced=False)
    assert done.exit_code == 2
    assert "is no leaderboard" in done.stderr and "move it away" in done.stderr


def test_the_best_goodput_comes_first_and_the_disqualified_last() -> None:
    def entry(policy: str, goodput: float | None) -> leaderboard.Entry:
        key = dict.fromkeys(leaderboard.KEY, "x") | {"policy": policy}
        return key | {"figures": None if goodput is None else {"goodput": goodput}}

    (group,) = leaderboard.ranked([entry("a", 1.0), entry("b", None), entry("c", 2.0)])
    assert [item["policy"] for item in group] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policies", "statik"], "there is no 'statik'; did you mean 'static'?"),
        (["--workloads", "chats"], "there is no 'chats'; did you mean 'chat'?"),
        (["--requests", "-3"], "requests is -3; it must be at least 1"),
        (["--scheduler", "mine.py:Mine"], "there is no Python file mine.py"),
        (["score", "vllm-v1", "chats"], "there is no workload 'chats'; did you mean 'chat'?"),
        (["score", "vllm-v1", "chat", "--seeds", "1,x"], "the seed 'x' is no whole number"),
        (["score", "vllm-v1", "chat", "--seeds", ","], "seeds is empty"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(
    arena: Arena, words: list[str], message: str
) -> None:
    done = arena(*words)
    assert done.exit_code == 2
    assert done.stderr.startswith("labkit arena: ") and done.stderr.count("\n") == 1
    assert message in done.stderr


def test_a_missing_file_of_prices_is_named(arena: Arena) -> None:
    done = arena("--cost-model", "/no/prices.json", priced=False)
    assert done.exit_code == 2
    assert "/no/prices.json: there is no such file; measure: labkit arena fit" in done.stderr


def test_a_score_tells_the_ratio_and_passes_only_above_one(arena: Arena) -> None:
    done = arena("score", "vllm-v1", "bursts", "--seeds", "1,2", "--requests", "30")
    assert done.exit_code == 1  # equal is not better
    assert "score 1.000 (above 1 beats vllm-v1)" in done.output
    cheat = arena("score", f"{CHEATERS}:EndsEarly", "bursts", "--requests", "30")
    assert cheat.exit_code == 1
    assert "✗ score 0: it broke a rule: r0 ended" in cheat.output


def test_the_speed_of_the_simulator_is_told(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    done = arena("speed", "--requests", "50", "--workload", "bursts")
    assert done.exit_code == 0
    assert "requests per cpu second" in done.output


def test_pictures_are_drawn_where_one_wants_them(arena: Arena, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    done = arena("--workloads", "bursts,priorities", "--policies", "static,vllm-v1", "--requests",
                 "30", "--plots", str(folder))  # fmt: skip
    assert done.exit_code == 0
    for name in ("goodput", "latency", "kv"):
        assert (folder / f"arena-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_other_prices_give_other_names() -> None:
    assert CostModel((1.0,) * 8).name != CostModel((2.0,) * 8).name
