"""Change request 2: blocks without a name go back first."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.group_managers import GroupManager, WindowManager


def manager_with(kind: Any, spec: GroupSpec, table: list[int], named: list[int]) -> Any:
    """A manager whose request "ana" holds these blocks; 0 is the null block."""
    pool = BlockPool(12, True)
    blocks = {block.block_id: block for block in pool.get_new_blocks(11)}
    for number in named:
        pool.cache_full_blocks([blocks[number]], [bytes([number]) * 36])
    manager = kind(spec, 0, pool, 4, 64, 256)
    manager.req_to_blocks["ana"] = [blocks.get(number, pool.null_block) for number in table]
    manager.num_cached_blocks["ana"] = 0
    return manager


def queue(manager: Any) -> list[int]:
    return [block.block_id for block in manager.pool.get_new_blocks(manager.pool.num_free_blocks)]


def test_change_2_free() -> None:
    """From the end of the table, but 6 and 8, which no request can find, before 2 and 5."""
    manager = manager_with(GroupManager, GroupSpec("full", 4), [5, 0, 8, 2, 6], [5, 2])
    manager.free("ana")
    expect(queue(manager), [6, 8, 2, 5], at="the order in which blocks are used again")


def test_change_2_release() -> None:
    """Three blocks leave the window, newest first; 3 has no name."""
    spec = GroupSpec("sliding_window", 4, window=5)
    manager = manager_with(WindowManager, spec, [0, 1, 3, 4, 7], [1, 4])
    manager.release_skipped("ana", 20)
    expect(queue(manager), [3, 4, 1], at="the order in which blocks are used again")
    table = [block.block_id for block in manager.req_to_blocks["ana"]]
    expect(table, [0, 0, 0, 0, 7], at="ana's table")


def test_change_2_all_alike_is_as_before() -> None:
    """Without names, or with names for all, from the end of the table."""
    for named in ([], [5, 8, 2]):
        manager = manager_with(GroupManager, GroupSpec("full", 4), [5, 8, 2], named)
        manager.free("ana")
        expect(queue(manager), [2, 8, 5], at=f"names for {named}")
