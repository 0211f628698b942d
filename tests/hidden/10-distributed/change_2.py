"""Change request 2, beside the rule written again."""

from __future__ import annotations

import random

import pytest

from mini_vllm.distributed.dp_router import DPRouter


@pytest.mark.parametrize("seed", range(30))
def test_change_2_any_engines(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.randint(1, 4)
    router, counts, turn = DPRouter(size), [[0, 0] for _ in range(size)], 0
    assert router.draining == set()
    for number in range(40):
        router.draining ^= {draw.randrange(size)} if draw.random() < 0.3 else set()
        if draw.random() < 0.3:
            engine, told = draw.randrange(size), [draw.randint(0, 2), draw.randint(0, 5)]
            router.set_counts(engine, *told)
            counts[engine] = list(told)
        able = [e for e in (*range(turn, size), *range(turn)) if e not in router.draining]
        if not able:
            with pytest.raises(ValueError):
                router.get_core_engine_for_request(f"r{number}")
            assert f"r{number}" not in router.engines
            continue
        right = min(able, key=lambda e: 4 * counts[e][0] + counts[e][1])
        assert router.get_core_engine_for_request(f"r{number}") == right
        turn = (right + 1) % size
        counts[right][0] += 1
        assert router.counts == counts


def test_change_2_a_choice_wins() -> None:
    router = DPRouter(3)
    router.draining.update((0, 1, 2))
    assert router.get_core_engine_for_request("ada", 2) == 2
    assert router.counts == [[0, 0], [0, 0], [1, 0]]
