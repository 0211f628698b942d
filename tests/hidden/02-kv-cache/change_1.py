"""Change request 1, over random pools, with hits and refusals."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


def request_of(manager: KVCacheManager, name: str, tokens: list[int]) -> Request:
    request = Request(name, tokens, SamplingParams(temperature=0.0, max_tokens=8), 0, 0.0)
    request.set_block_hasher(manager.block_hasher)
    return request


@pytest.mark.parametrize("seed", range(40))
def test_change_1_the_reserve_is_left(seed: int) -> None:
    rng = Random(seed)
    usable, reserve, wanted = rng.randint(2, 9), rng.randint(0, 4), rng.randint(1, 10)
    manager = KVCacheManager(usable + 1, 4, 128, hash_root=b"root")
    manager.reserve = reserve  # type: ignore[attr-defined]
    request = request_of(manager, "a", list(range(4 * wanted)))
    got = manager.allocate_slots(request, 4 * wanted)
    assert (got is not None) == (wanted + reserve <= usable)
    assert manager.num_free_blocks == (usable - wanted if got is not None else usable)
    manager.check_integrity()


def test_change_1_free_hits_cost_too() -> None:
    manager = KVCacheManager(6, 4, 128, hash_root=b"root")
    manager.reserve = 2  # type: ignore[attr-defined]
    first = request_of(manager, "a", list(range(12)))
    assert manager.allocate_slots(first, 12) is not None
    manager.free(first)
    second = request_of(manager, "b", [*range(12), 50, 51, 52, 53])
    hits, count = manager.get_computed_blocks(second)
    assert count == 12
    assert manager.allocate_slots(second, 4, count, hits) is None  # 5 free, 3 hits, 1 new, 2 kept
    assert manager.num_free_blocks == 5
    manager.reserve = 1  # type: ignore[attr-defined]
    assert manager.allocate_slots(second, 4, count, hits) is not None
    manager.check_integrity()


def test_change_1_a_preempted_request_counts_as_new() -> None:
    manager = KVCacheManager(4, 4, 128, enable_caching=False, hash_root=b"root")
    manager.reserve = 1  # type: ignore[attr-defined]
    request = request_of(manager, "a", list(range(12)))
    assert manager.allocate_slots(request, 8) is not None
    request.num_computed_tokens = 8
    assert manager.allocate_slots(request, 4) is not None
    manager.free(request)
    request.num_computed_tokens = 0
    assert manager.allocate_slots(request, 12) is None
