"""Change request 1, over random caches: which images go, in which order, and which stay."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.core.encoder_cache_manager import EncoderCacheManager
from mini_vllm.mm_features import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.request import Request


def request(rows: int) -> Request:
    image = MultiModalFeatureSpec({}, "image", "new", PlaceholderRange(0, rows))
    return Request("ana", range(rows + 1), mm_features=[image])


@pytest.mark.parametrize("seed", range(40))
def test_change_1_the_most_rows_first_and_the_oldest_of_equals(seed: int) -> None:
    rng = Random(seed)
    sizes = {f"i{n}": rng.randint(1, 5) for n in range(rng.randint(1, 8))}
    needed = {name for name in sizes if rng.random() < 0.3}
    empty, promised = rng.randint(0, 4), rng.randint(0, 3)
    manager = EncoderCacheManager(sum(sizes.values()) + empty)
    manager.num_free_slots = empty
    manager.num_freeable_slots = empty
    for name, rows in sizes.items():
        manager.cached[name] = {"zoe"} if name in needed else set()
        if name not in needed:
            manager.freeable[name] = rows
            manager.num_freeable_slots += rows
    rows = rng.randint(1, 14)
    free = [name for name in sizes if name not in needed]
    order = sorted(free, key=lambda name: -sizes[name])  # stable: among equals the oldest
    gone: list[str] = []
    there = empty
    fits = rows + promised <= empty + sum(sizes[name] for name in free)
    while fits and there < rows + promised:
        gone.append(order[len(gone)])
        there += sizes[gone[-1]]
    assert manager.can_allocate(request(rows), 0, 99, promised) == fits
    assert manager.freed == gone and manager.num_free_slots == there
    assert list(manager.freeable) == [name for name in free if name not in gone]
    assert set(manager.cached) == set(sizes) - set(gone)
    assert not manager.can_allocate(request(rows), 0, rows - 1, 0), "the budget counts as before"
