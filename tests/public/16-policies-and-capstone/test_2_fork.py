"""Task 16.2: forks share blocks, and a write to a shared one copies it first."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect


def references(manager: Any, *block_ids: int) -> list[int]:
    """In how many tables blocks stand."""
    return [manager.block_pool.blocks[i].ref_cnt for i in block_ids]


def fork(desk: Any, manager: Any, parent: Any, name: str, num_tokens: int) -> Any:
    """Fork with your method; the child has one token more than it takes over."""
    child = desk.request(name, parent.all_token_ids[: num_tokens + 1])
    child.set_block_hasher(manager.block_hasher)
    manager.fork(parent, child, num_tokens)
    return child


def test_16_2_a_fork_shares_everything_and_takes_no_block(desk: Any) -> None:
    """Two tables, one copy: references grow, free blocks stay."""
    manager = desk.manager()
    ana = desk.hold(manager, "ana", 6)
    ben = fork(desk, manager, ana, "ben", 6)
    at = "ana has 6 tokens in blocks 1 and 2; ben forks all of them"
    expect(desk.table(manager, "ben"), [1, 2], at=f"{at}: ben's table")
    expect(references(manager, 1, 2), [2, 2], at=f"{at}: references to blocks 1 and 2")
    expect(manager.num_free_blocks, 7, at=f"{at}: free blocks, of 9")
    expect(ben.num_computed_tokens, 6, at=f"{at}: tokens of ben that are computed")


def test_16_2_a_fork_may_begin_within_the_parents_tokens(desk: Any) -> None:
    """It shares the blocks that hold its tokens, the last one even if it is partly the parent's."""
    manager = desk.manager()
    ana = desk.hold(manager, "ana", 11)
    ben = fork(desk, manager, ana, "ben", 5)
    at = "ana has 11 tokens in blocks 1, 2, 3; ben forks the first 5"
    expect(desk.table(manager, "ben"), [1, 2], at=f"{at}: ben's table")
    expect(references(manager, 1, 2, 3), [2, 2, 1], at=f"{at}: references to blocks 1, 2, 3")
    expect(ben.num_computed_tokens, 5, at=f"{at}: tokens of ben that are computed")
    expect(manager.num_cached_blocks.get("ben"), 1, at=f"{at}: of ben's blocks, full and findable")


def test_16_2_tables_are_shared_by_content_not_by_name(desk: Any) -> None:
    """What ben appends is no business of ana's."""
    manager = desk.manager()
    ana = desk.hold(manager, "ana", 8)
    fork(desk, manager, ana, "ben", 8)
    manager.req_to_blocks["ben"].append(manager.block_pool.blocks[9])
    expect(desk.table(manager, "ana"), [1, 2], at="ben's table grew by block 9; ana's table")


def test_16_2_the_first_writer_copies_and_the_last_holder_does_not(desk: Any) -> None:
    """A copy for each, but the last one writes to the original."""
    manager = desk.manager()
    ana = desk.hold(manager, "ana", 6)
    ben = desk.share(manager, ana, "ben", 6)
    at = "ana and ben share blocks 1 and 2 (6 tokens), each needs a slot for token 7"
    _, copies = manager.append(ana, 7)
    expect(copies, [(2, 3)], at=f"{at}: ana writes first: (source, destination)")
    expect(desk.table(manager, "ana"), [1, 3], at=f"{at}: ana's table after that")
    expect(desk.table(manager, "ben"), [1, 2], at=f"{at}: ben's table after that")
    _, copies = manager.append(ben, 7)
    expect(copies, [], at=f"{at}: then ben writes, and nobody else holds block 2")
    expect(references(manager, 1, 2, 3), [2, 1, 1], at=f"{at}: references to blocks 1, 2, 3")


def test_16_2_a_full_block_is_shared_for_good(desk: Any) -> None:
    """The next token begins a block, so no shared one is written to."""
    manager = desk.manager()
    ana = desk.hold(manager, "ana", 8)
    desk.share(manager, ana, "ben", 8)
    new, copies = manager.append(ana, 9)
    at = "ana and ben share blocks 1 and 2, both full; ana needs a slot for token 9"
    expect(copies, [], at=f"{at}: copies")
    expect(new.get_block_ids(), [3], at=f"{at}: blocks added at the end")
    expect(desk.table(manager, "ana"), [1, 2, 3], at=f"{at}: ana's table")


def test_16_2_the_block_of_the_next_token_is_copied_not_the_last(desk: Any) -> None:
    """A fork that begins early writes in the middle of its table."""
    manager = desk.manager()
    ana = desk.hold(manager, "ana", 11)
    ben = desk.share(manager, ana, "ben", 11)
    ben.num_computed_tokens = 5
    _, copies = manager.append(ben, 6)
    at = "ben shares ana's blocks 1, 2, 3 but has computed 5 tokens; he writes token 6"
    expect(copies, [(2, 4)], at=f"{at}: (source, destination)")
    expect(desk.table(manager, "ben"), [1, 4, 3], at=f"{at}: ben's table")


def test_16_2_new_blocks_follow_as_far_as_they_are_wanted(desk: Any) -> None:
    """The copy is no new block: only those at the end are returned."""
    manager = desk.manager()
    ana = desk.hold(manager, "ana", 6)
    ben = desk.share(manager, ana, "ben", 6)
    new, copies = manager.append(ben, 13)
    at = "ben shares 2 blocks with ana and wants slots up to 13: a copy and 2 more blocks"
    expect(copies, [(2, 3)], at=f"{at}: (source, destination)")
    expect(new.get_block_ids(), [4, 5], at=f"{at}: blocks added at the end")
    expect(desk.table(manager, "ben"), [1, 3, 4, 5], at=f"{at}: ben's table")
    new, _ = manager.append(ben, 3)
    expect(new.get_block_ids(), [], at="ben has 4 blocks and asks for slots up to 3")


def test_16_2_too_few_blocks_are_an_error_and_change_nothing(desk: Any) -> None:
    """All blocks or none: what there is of them stays in the pool."""
    manager = desk.manager(blocks=3)
    ana = desk.hold(manager, "ana", 4)
    at = "ana has 4 tokens in block 1, and wants 16 slots: 3 more blocks, of which 2 are free"
    with pytest.raises(ValueError):
        manager.append(ana, 16)
    expect(desk.table(manager, "ana"), [1], at=f"{at}: her table afterwards")
    expect(manager.num_free_blocks, 2, at=f"{at}: free blocks afterwards")
