"""Change request 2: an engine that gets no new requests."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.distributed.dp_router import DPRouter


def one_at_a_time(router: DPRouter, count: int) -> list[int]:
    chosen = []
    for number in range(count):
        chosen.append(router.get_core_engine_for_request(f"r{number}"))
        router.set_counts(chosen[-1], 0, 0)
    return chosen


def test_change_2_the_others_take_turns() -> None:
    """Engine 1 of three drains."""
    router = DPRouter(3)
    router.draining.add(1)
    expect(one_at_a_time(router, 4), [0, 2, 0, 2], at="four requests, one at a time")
    router.draining.discard(1)
    expect(one_at_a_time(router, 3), [0, 1, 2], at="afterwards")


def test_change_2_no_engine_is_left() -> None:
    """An error, and nothing counted."""
    router = DPRouter(2)
    router.draining.update((0, 1))
    with pytest.raises(ValueError):
        router.get_core_engine_for_request("ada")
    expect((router.counts, router.engines), ([[0, 0], [0, 0]], {}), at="both drain")


def test_change_2_the_callers_choice() -> None:
    """It still wins."""
    router = DPRouter(2)
    router.draining.add(1)
    expect(router.get_core_engine_for_request("ada", 1), 1, at="data_parallel_rank=1")
