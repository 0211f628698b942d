"""The simulator: times that can be worked out by hand, and the same ones every time."""

from __future__ import annotations

import pytest

from labkit.arena.cost import CostModel
from labkit.arena.simulator import MAX_SAMPLES, simulate
from labkit.arena.workloads import WORKLOADS, Arrival
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.policies import POLICIES
from tests.labkit.arena.worlds import ROUND, arrival, play, world

PRICES = CostModel((2e-3, 5e-4, 8e-5, 2e-8, 4e-4, 5e-7, 5e-5, 3e-5))


def test_one_request_takes_its_prompt_and_its_tokens() -> None:
    """10 prompt tokens: 1 + 1 s, first token at 2; two decodes of 1.5 s each."""
    run = play([arrival(0.0, 10, 3)])
    (served,) = run.served
    assert (served.ttft, served.tpot, served.e2e) == pytest.approx((2.0, 1.5, 5.0))
    assert run.steps == 3 and run.seconds == pytest.approx(5.0)
    assert run.computed_tokens == 12 and run.recomputed_tokens == 0


def test_a_request_that_arrives_during_a_step_joins_the_next() -> None:
    """b comes at 0.5, while a's prompt runs until 2; then a decodes beside b's prompt."""
    run = play([arrival(0.0, 10, 3), arrival(0.5, 20, 2)])
    a, b = sorted(run.served, key=lambda s: s.number)
    assert a.first_token == pytest.approx(2.0)
    assert b.first_token == pytest.approx(2.0 + 1 + 0.5 + 2.0)
    assert a.finished == b.finished == pytest.approx(5.5 + 1 + 2 * 0.5)


def test_without_requests_time_passes_until_the_next_arrival() -> None:
    run = play([arrival(0.0, 10, 1), arrival(100.0, 10, 1)])
    assert [s.finished for s in run.served] == pytest.approx([2.0, 102.0])
    assert run.steps == 2


def test_what_the_cache_supplies_is_neither_computed_nor_paid() -> None:
    """The second prompt equals the first: two of its three blocks are found."""
    run = play([arrival(0.0, 12, 2, start=50), arrival(50.0, 12, 2, start=50)])
    assert run.cached_tokens == 8
    assert run.computed_tokens == 13 + 5
    second = run.served[1]
    assert second.ttft == pytest.approx(1 + 4 * 0.1)


def test_preempted_work_is_counted_as_computed_again() -> None:
    """Two requests of 8 + 8 tokens in 6 blocks of 4: the second loses its blocks once."""
    arrivals = [arrival(0.0, 8, 9, start=100), arrival(0.0, 8, 9, start=200)]
    run = play(arrivals, world(blocks=6))
    assert run.preemptions == 1
    needed = 2 * (8 + 9 - 1)
    assert run.recomputed_tokens == run.computed_tokens - needed > 0
    assert run.kv_peak == 1.0


def test_kv_use_is_averaged_over_time() -> None:
    """4 prompt tokens in one block of 64 for 1.4 s, then a second block for 1.5 s."""
    run = play([arrival(0.0, 4, 2)])
    assert run.kv_seconds == pytest.approx(1.4 * 1 / 64 + 1.5 * 2 / 64)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_repeats_exactly(policy: str) -> None:
    workload = WORKLOADS["bursts"]
    first, second = (
        simulate(POLICIES[policy], workload, workload.arrivals(5, 80), PRICES, 64) for _ in range(2)
    )
    assert first == second
    other = simulate(POLICIES[policy], workload, workload.arrivals(6, 80), PRICES, 64)
    assert other != first


def test_the_referee_changes_no_figure() -> None:
    workload = WORKLOADS["bursts"]
    runs = [
        simulate(Scheduler, workload, workload.arrivals(0, 60), PRICES, every) for every in (0, 1)
    ]
    assert runs[0] == runs[1]


def test_each_served_request_ticks_once() -> None:
    seen: list[int] = []
    arrivals = [arrival(0.1 * i, 5, 4) for i in range(1, 20)]
    run = simulate(Scheduler, world(), arrivals, ROUND, tick=lambda: seen.append(1))
    assert len(seen) == len(run.served) == 19
    assert sorted(s.number for s in run.served) == list(range(19))


def test_a_long_run_keeps_a_bounded_curve() -> None:
    long = Arrival(0.0, (range(1, 5),), 200)
    many = [Arrival(300.0 * i, long.parts, 200) for i in range(30)]
    run = play(many, cost=ROUND, check_every=0)
    assert run.steps > MAX_SAMPLES
    assert MAX_SAMPLES / 2 <= len(run.samples) <= MAX_SAMPLES
    times = [sample.time for sample in run.samples]
    assert times == sorted(times) and times[-1] > 0.99 * run.seconds
