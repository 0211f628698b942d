"""Which engine gets a request: the rule, written again."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.distributed.dp_router import DPRouter


@pytest.mark.parametrize("seed", range(5))
def test_the_least_busy_engine_gets_it(seed: int) -> None:
    rng = Random(seed)
    num_engines = rng.randint(1, 5)
    router, counts, turn = DPRouter(num_engines), [[0, 0] for _ in range(num_engines)], 0
    for number in range(400):
        if rng.random() < 0.3:
            engine = rng.randrange(num_engines)
            counts[engine] = [rng.randrange(4), rng.randrange(9)]
            router.set_counts(engine, *counts[engine])
        best = min(4 * w + r for w, r in counts)
        while 4 * counts[turn][0] + counts[turn][1] != best:
            turn = (turn + 1) % num_engines
        assert router.get_core_engine_for_request(str(number)) == turn
        assert router.engines[str(number)] == turn
        counts[turn][0] += 1
        turn = (turn + 1) % num_engines


def test_a_burst_is_shared_out() -> None:
    router = DPRouter(4)
    chosen = [router.get_core_engine_for_request(str(i)) for i in range(400)]
    assert [chosen.count(engine) for engine in range(4)] == [100] * 4


def test_one_at_a_time_goes_around() -> None:
    """Ties go in turn, or an idle service would use one engine only."""
    router = DPRouter(3)
    chosen = []
    for number in range(6):
        chosen.append(router.get_core_engine_for_request(str(number)))
        router.set_counts(chosen[-1], 0, 0)
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_the_callers_choice_wins_and_is_checked() -> None:
    router = DPRouter(2)
    assert [router.get_core_engine_for_request(str(i), 1) for i in range(3)] == [1, 1, 1]
    assert router.get_core_engine_for_request("next") == 0
    with pytest.raises(ValueError, match="data_parallel_rank is 2; it must be from 0 to 1"):
        router.get_core_engine_for_request("x", 2)
    assert router.split(["0", "next", "x"]) == {1: ["0"], 0: ["next"]}
    router.finish(["0", "unknown"])
    assert router.split(["0"]) == {}
