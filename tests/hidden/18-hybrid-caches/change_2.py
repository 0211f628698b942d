"""Change request 2, over random tables."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.group_managers import GroupManager, StateManager, WindowManager


def made(kind: Any, spec: GroupSpec, draw: random.Random) -> tuple[Any, list[int], set[int]]:
    pool = BlockPool(40, True)
    blocks = pool.get_new_blocks(draw.randint(1, 20))
    named = {block.block_id for block in blocks if draw.random() < 0.5}
    for block in blocks:
        if block.block_id in named:
            pool.cache_full_blocks([block], [bytes([block.block_id]) * 36])
    manager = kind(spec, 0, pool, 4, 64, 256)
    front = [pool.null_block] * draw.randint(0, 3)
    manager.req_to_blocks["r"] = front + blocks
    manager.num_cached_blocks["r"] = 0
    return manager, [block.block_id for block in front + blocks], named


def freed(manager: Any, count: int) -> list[int]:
    """The last blocks of the free queue."""
    free = manager.pool.get_new_blocks(manager.pool.num_free_blocks)
    return [block.block_id for block in free][-count:] if count else []


def order(ids: list[int], named: set[int]) -> list[int]:
    return [i for i in ids if i not in named] + [i for i in ids if i in named]


@pytest.mark.parametrize("seed", range(30))
def test_change_2_free_anything(seed: int) -> None:
    draw = random.Random(seed)
    kind, spec = draw.choice(
        [
            (GroupManager, GroupSpec("full", 4)),
            (WindowManager, GroupSpec("sliding_window", 4, window=9)),
            (StateManager, GroupSpec("mamba", 4, mode="align")),
        ]
    )
    manager, table, named = made(kind, spec, draw)
    given = [number for number in reversed(table) if number]
    manager.free("r")
    assert freed(manager, len(given)) == order(given, named)
    assert manager.pool.null_block.ref_cnt >= 0 and "r" not in manager.req_to_blocks


@pytest.mark.parametrize("seed", range(30))
def test_change_2_release_anything(seed: int) -> None:
    draw = random.Random(100 + seed)
    window = draw.randint(1, 20)
    manager, table, named = made(WindowManager, GroupSpec("sliding_window", 4, window=window), draw)
    computed = draw.randint(0, 4 * len(table))
    num_skipped = min(max(0, computed - window + 1) // 4, len(table))
    given = [number for number in reversed(table[:num_skipped]) if number]
    manager.release_skipped("r", computed)
    assert freed(manager, len(given)) == order(given, named)
    held = [block.block_id for block in manager.req_to_blocks["r"]]
    assert held == [0] * num_skipped + table[num_skipped:]
