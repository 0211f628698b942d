"""The fleet's clock beside sums by hand, its rules, and its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labkit.arena import cli
from labkit.arena.cost import CostModel
from labkit.arena.fleet.contest import FleetMatch, fleet_of, load_link, play, play_class
from labkit.arena.fleet.simulator import Link, Machines, prices_of, serve
from labkit.arena.fleet.traces import TRACES, block_keys
from labkit.arena.referee import RuleBroken
from labkit.arena.workloads import Arrival
from labkit.course.root import ROOT
from mini_vllm.policies.fleet import (
    FLEET_POLICIES,
    FleetPolicy,
    Job,
    LeastLoaded,
    Placement,
    View,
)

COST = CostModel((1.0, 2.0, 0.5, 0.0, 0.25, 0.0, 0.0, 0.0))
"""A step 1 s, a prompt 2, its token 0.5, a token that is made 0.25."""
LINK = Link(10.0, 0.125)
ONE = Machines(1, 1)


class Fixed(FleetPolicy):
    """Always the same placement."""

    choice: object = Placement(0, 0)

    def place(self, job: Job, prefill: object, decode: object) -> Placement:
        return self.choice  # type: ignore[return-value]


class Local(Fixed):
    choice = Placement(None, 0)


def run(policy: type[FleetPolicy], *arrivals: Arrival, machines: Machines = ONE) -> list[tuple]:
    found = serve(
        policy(prices_of(COST, LINK)), TRACES["chat"], arrivals, machines, COST, LINK
    ).served
    return [(s.number, s.first_token, s.finished) for s in sorted(found)]


def ask(time: float, start: int, length: int, answer: int = 3) -> Arrival:
    return Arrival(time, (range(start, start + length),), answer)


def test_remote_computes_travels_and_makes_tokens() -> None:
    """1 + 2 + 8 * 0.5 = 7 s to compute, 10 + 8 * 0.125 = 11 s to travel, 1.25 s a token."""
    assert run(Fixed, ask(0.0, 1, 8)) == [(0, 19.25, 21.75)]


def test_local_computes_and_makes_the_first_token_in_that_step() -> None:
    assert run(Local, ask(0.0, 1, 8)) == [(0, 7.0, 9.5)]


def test_prompts_wait_for_each_other_and_share_a_step() -> None:
    """The second begins at 7, pays no step of its own: 13; the link is free at 18 and 24."""
    found = run(Fixed, ask(0.0, 1, 8, 1), ask(1.0, 101, 8, 1))
    assert found == [(0, 19.25, 19.25), (1, 30.25, 30.25)]


def test_what_is_in_the_cache_is_not_computed() -> None:
    """The same 32 tokens again: one token is computed in any case, and nothing travels."""
    found = run(Fixed, ask(0.0, 1, 32, 1), ask(100.0, 1, 32, 1))
    assert found[0][1] == 3 + 16 + 10 + 4 + 1.25
    assert found[1][1] == pytest.approx(100 + 3 + 0.5 + 10 + 1.25)


def test_a_local_prompt_stalls_decoding_requests() -> None:
    """Steps of 1.25 s, and one that also computes 8 tokens for 6 s."""
    alone = run(Local, ask(0.0, 1, 8, 9))
    beside = run(Local, ask(0.0, 1, 8, 9), ask(8.0, 101, 8, 1))
    assert beside[0][2] - alone[0][2] == 6.0


@pytest.mark.parametrize("policy", FLEET_POLICIES.values())
@pytest.mark.parametrize("machines", [(8, None), (8, 0), (1, 0), (40, None)])
def test_every_request_is_served_and_runs_repeat(
    policy: type[FleetPolicy], machines: tuple[int, int | None]
) -> None:
    for name in TRACES:
        match = FleetMatch("", name, 3, *machines, requests=40)
        first, second = play_class(match, policy), play_class(match, policy)
        assert first == second and first.requests == 40
        assert 0 <= first.prefill_busy <= 1 and 0 < first.decode_busy <= 1


@pytest.mark.parametrize("choice", [Placement(1, 0), Placement(0, 1), Placement(0, -1), None, (0,)])
def test_a_machine_that_does_not_exist_is_a_broken_rule(choice: object) -> None:
    cheat = type("Cheat", (Fixed,), {"choice": choice})
    with pytest.raises(RuleBroken, match="place returned"):
        run(cheat, ask(0.0, 1, 8))


def test_what_the_tier_does_not_have_cannot_be_loaded() -> None:
    class Liar(Local):
        def fetch(self, prompt_len: int, cached_tokens: int, stored_tokens: int) -> int:
            return stored_tokens + 16

    with pytest.raises(RuleBroken, match="fetch asks for 16"):
        run(Liar, ask(0.0, 1, 32))


def test_keys_name_all_that_comes_before() -> None:
    one, two = (block_keys(ask(0.0, start, 40), 16) for start in (1, 1))
    assert one == two and len(one) == 2
    other = Arrival(0.0, (range(1, 17), range(900, 916)), 1)
    assert block_keys(other, 16)[0] == one[0] and block_keys(other, 16)[1] != one[1]


def test_the_link_was_measured_and_the_clock_is_near() -> None:
    """Calibrated against two engines in two processes (benchmarks/bench_link.py)."""
    link = load_link()
    assert 0 < link.trip < 0.1 and 0 < link.carried < 1e-3
    data = json.loads((ROOT / "benchmarks/results/arena/link.json").read_text(encoding="utf-8"))
    assert data["median_error"]["first_token"] < 0.1 and "processor" in data["machine"]


def test_wrong_words_are_one_line() -> None:
    runner = CliRunner()
    for words, message in [
        (["--policies", "least-loadd"], "did you mean 'least-loaded'?"),
        (["--traces", "chatt"], "did you mean 'chat'?"),
        (["--machines", "2", "--prefill", "2"], "at least one must be left"),
        (["--policy", "nowhere.py:X"], "there is no Python file nowhere.py"),
        (["--link", "/nowhere/link.json"], "bench_link --save"),
        (["--speed", "0"], "must be above 0"),
    ]:
        done = runner.invoke(cli.app, ["fleet", *words])
        assert done.exit_code == 2 and message in done.output + done.stderr, words


def test_a_policy_from_a_file_plays_in_a_child(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from mini_vllm.policies.fleet import LeastLoaded\n"
        "class Mine(LeastLoaded):\n    pass\n"
        "class Bad(LeastLoaded):\n    def place(self, *a): raise KeyError('x')\n"
    )
    match = FleetMatch(f"{file}:Mine", "hot", 1, requests=30)
    figures = play(match).figures
    assert figures == play_class(FleetMatch("", "hot", 1, requests=30), LeastLoaded)
    bad = play(FleetMatch(f"{file}:Bad", "hot", 1, requests=30))
    assert bad.disqualified and "KeyError" in bad.disqualified
    assert fleet_of(8) == Machines(3, 5, tier_blocks=2048) and View(0, 0.0, 0, 0).held_tokens == 0
