"""Task 16.3: blocks move to the host and come back."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def on_host(manager: Any, **tables: list[int]) -> None:
    """Write host tables as `swap_out` leaves them."""
    held = {block for table in tables.values() for block in table}
    manager.free_host_blocks = [i for i in manager.free_host_blocks if i not in held]
    manager.host_tables.update(tables)


def test_16_3_a_shared_block_moves_once(desk: Any) -> None:
    """Two requests with a common prefix: copied once, and shared on the host as well."""
    manager = desk.manager()
    ana = desk.hold(manager, "ana", 4)
    ben = desk.share(manager, ana, "ben", 4)
    manager.req_to_blocks["ben"] += manager.block_pool.get_new_blocks(1)
    ben.num_computed_tokens = 6
    pairs = manager.swap_out([ana, ben])
    at = "ana has block 1; ben has blocks 1 and 2; both are swapped out"
    expect(sorted(device for device, _ in pairs), [1, 2], at=f"{at}: device blocks copied")
    moved = dict(pairs)
    host = {"ana": [moved[1]], "ben": [moved[1], moved[2]]}
    expect(manager.host_tables, host, at=f"{at}: host tables; copies {pairs}")
    expect(len(manager.free_host_blocks), 4, at=f"{at}: free host blocks, of 6")


def test_16_3_the_device_blocks_are_free_at_once(desk: Any) -> None:
    """That is what it was done for."""
    manager = desk.manager()
    ana = desk.hold(manager, "ana", 9)
    manager.swap_out([ana])
    at = "ana held 3 of 9 blocks and is swapped out"
    expect(manager.num_free_blocks, 9, at=f"{at}: free blocks")
    expect(desk.table(manager, "ana"), [], at=f"{at}: ana's table on the device")


def test_16_3_only_computed_blocks_move(desk: Any) -> None:
    """Blocks that were reserved for later hold nothing yet."""
    manager = desk.manager()
    ana = desk.hold(manager, "ana", 6, reserved=14)
    at = f"ana holds blocks {desk.table(manager, 'ana')}; her 6 tokens fill the first 2"
    pairs = manager.swap_out([ana])
    expect(sorted(device for device, _ in pairs), [1, 2], at=f"{at}: device blocks copied")
    expect(manager.num_free_blocks, 9, at=f"{at}: free blocks afterwards")


def test_16_3_they_come_back_to_other_blocks_and_share_again(desk: Any) -> None:
    """One new block for each host block, however many tables name it."""
    manager = desk.manager()
    zoe = desk.hold(manager, "zoe", 4)
    ana, ben = desk.request("ana", 6), desk.request("ben", 6)
    on_host(manager, ana=[0, 1], ben=[0, 2])
    pairs = manager.swap_in([ana, ben])
    at = "ana has host blocks 0 and 1, ben 0 and 2; zoe holds block 1 of the device"
    expect(sorted(host for host, _ in pairs), [0, 1, 2], at=f"{at}: host blocks copied")
    expect(sorted(device for _, device in pairs), [2, 3, 4], at=f"{at}: to device blocks")
    at, moved = f"{at}; copies {pairs}", dict(pairs)
    expect(desk.table(manager, "ana"), [moved[0], moved[1]], at=f"{at}: ana's table")
    expect(desk.table(manager, "ben"), [moved[0], moved[2]], at=f"{at}: ben's table")
    counts = [manager.block_pool.blocks[i].ref_cnt for i in (1, *map(moved.get, (0, 1, 2)))]
    wanted = [1, 2, 1, 1]
    expect(counts, wanted, at=f"{at}: references to block 1 and to what were host blocks 0, 1, 2")
    assert zoe.request_id in manager.req_to_blocks


def test_16_3_the_host_blocks_are_free_again(desk: Any) -> None:
    """Each of them once."""
    manager = desk.manager()
    on_host(manager, ana=[0, 1], ben=[0, 2])
    manager.swap_in([desk.request("ana", 6), desk.request("ben", 6)])
    at = "ana and ben had host blocks 0, 1 and 0, 2 of 6, and came back"
    expect(manager.host_tables, {}, at=f"{at}: host tables")
    expect(sorted(manager.free_host_blocks), [0, 1, 2, 3, 4, 5], at=f"{at}: free host blocks")


def test_16_3_what_came_back_is_filed_under_no_hash(desk: Any) -> None:
    """The hashes stayed with the old blocks, which others may have overwritten."""
    manager = desk.manager()
    on_host(manager, ana=[3, 5])
    ana = desk.request("ana", 8)
    ana.num_computed_tokens = 8
    manager.swap_in([ana])
    at = "ana came back with 2 full blocks"
    expect(manager.num_cached_blocks.get("ana"), 0, at=f"{at}: how many are findable by hash")
