"""Task 10.12: which engine gets a request."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.distributed.dp_router import DPRouter


def router(*counts: tuple[int, int]) -> DPRouter:
    """Engines that wait and run so many."""
    made = DPRouter(len(counts))
    for engine, (waiting, running) in enumerate(counts):
        made.set_counts(engine, waiting, running)
    return made


def test_10_12_a_waiting_request_weighs_four() -> None:
    """4 * waiting + running."""
    made = router((1, 2), (0, 7), (2, 0))
    expect([made.score(engine) for engine in range(3)], [6, 7, 8], at="(1, 2), (0, 7), (2, 0)")


def test_10_12_the_least_to_do() -> None:
    """The smallest score wins."""
    at = "waiting and running: (0, 9), (2, 0), (1, 3)"
    expect(router((0, 9), (2, 0), (1, 3)).get_core_engine_for_request("ada"), 2, at=at)
    at = "waiting and running: (0, 5), (1, 0)"
    expect(router((0, 5), (1, 0)).get_core_engine_for_request("ada"), 1, at=at)


def test_10_12_equals_take_turns() -> None:
    """One request at a time to idle engines goes around."""
    made, chosen = router((0, 0), (0, 0), (0, 0)), []
    for number in range(5):
        chosen.append(made.get_core_engine_for_request(f"r{number}"))
        made.set_counts(chosen[-1], 0, 0)
    expect(chosen, [0, 1, 2, 0, 1], at="five requests, each over before the next comes")


def test_10_12_the_turn_follows_the_chosen() -> None:
    """After engine 2 of 4 the next tie goes to 3, then to 0."""
    made = router((1, 0), (1, 0), (0, 0), (1, 0))
    expect(made.get_core_engine_for_request("ada"), 2, at="engine 2 is idle")
    made.set_counts(2, 1, 0)
    chosen = [made.get_core_engine_for_request(name) for name in ("ben", "cyd")]
    expect(chosen, [3, 0], at="all alike, after engine 2 was chosen")


def test_10_12_a_burst() -> None:
    """No new counts come in between: 400 requests are 100 for each of four."""
    made = DPRouter(4)
    chosen = [made.get_core_engine_for_request(f"r{number}") for number in range(400)]
    expect([chosen.count(engine) for engine in range(4)], [100] * 4, at="400 requests at once")


def test_10_12_it_remembers() -> None:
    """An abort must find its engine."""
    made = router((5, 0), (0, 0))
    made.get_core_engine_for_request("ada")
    expect(made.engines, {"ada": 1}, at="engine 1 is idle")
    expect(made.counts, [[5, 0], [1, 0]], at="ada waits there")


def test_10_12_the_callers_choice() -> None:
    """It wins, is counted, and moves no turn."""
    made = router((0, 0), (9, 0), (0, 0))
    expect(made.get_core_engine_for_request("ada", 1), 1, at="data_parallel_rank=1")
    expect((made.counts[1], made.engines), ([10, 0], {"ada": 1}), at="engine 1")
    expect(made.get_core_engine_for_request("ben"), 0, at="the next one, without a choice")


def test_10_12_an_engine_that_is_not_there() -> None:
    """An error, and nothing is counted."""
    for rank in (-1, 2):
        made = router((0, 0), (0, 0))
        with pytest.raises(ValueError):
            made.get_core_engine_for_request("ada", rank)
        expect((made.counts, made.engines), ([[0, 0], [0, 0]], {}), at=f"rank {rank} of 2")
