"""Task 18.4: hits of windows and local chunks, whose front is null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from labkit.testing import expect


def hit(
    hy: Any, manager: Any, have: Sequence[int], max_length: int = 24, alignment: int = 4
) -> list[int]:
    """The hit of a prompt of 24 tokens, if the blocks at these places are found."""
    request = hy.request("ana", 24)
    hy.file(manager, request, {0: have})
    (table,) = manager.find_hit(request, max_length, [0], alignment)
    return hy.ids(table)


def test_18_4_a_name_has_its_group_in_it(hy: Any) -> None:
    """The same tokens have other contents in other groups."""
    manager, request = hy.manager(hy.FULL), hy.request("ana", 12)
    for group in (0, 258):
        want = request.block_hashes[1] + bytes([0, 0, group // 256, group % 256])
        got = manager.key(request, 1, group)
        expect(got.hex(), want.hex(), at=f"block 1 in group {group}: name in hexadecimal digits")


def test_18_4_a_name_joins_the_hashes_of_its_block(hy: Any) -> None:
    """Blocks of 8 tokens over hashes of 4: two hashes make a name."""
    manager, request = hy.manager(hy.window(5, block_size=8), hash_size=4), hy.request("ana", 16)
    want = request.block_hashes[2] + request.block_hashes[3] + bytes(4)
    got = manager.key(request, 1, 0)
    expect(got.hex(), want.hex(), at="tokens 8 to 15 in group 0: name in hexadecimal digits")


@pytest.mark.parametrize(("size", "number"), [(1, 0), (2, 1), (5, 1), (6, 2), (9, 2), (10, 3)])
def test_18_4_neighbours_hold_all_but_the_new_token(hy: Any, size: int, number: int) -> None:
    """A window of 5 counts the token that is to come: 4 old ones, one block."""
    got = hy.manager(hy.window(size)).num_neighbours()
    expect(got, number, at=f"window {size}, blocks of 4: blocks that hold {size - 1} old tokens")


def test_18_4_a_window_is_found_from_the_right(hy: Any) -> None:
    """Window 9 needs two neighbours. Blocks 3 and 4 are the last such pair; before them is null."""
    got = hit(hy, hy.manager(hy.window(9)), [0, 1, 3, 4])
    expect(got, [0, 0, 0, 3, 4], at="blocks at places 0, 1, 3, 4 of 6 are found")
    got = hit(hy, hy.manager(hy.window(9)), [0, 1, 2, 3, 4, 5])
    expect(got, [0, 0, 0, 0, 5, 6], at="all 6 blocks are found: 2 are enough")


def test_18_4_one_neighbour_is_enough_for_a_window_of_5(hy: Any) -> None:
    """The next token reads 4 old ones, which are one block."""
    got = hit(hy, hy.manager(hy.window(5)), [1, 4])
    expect(got, [0, 0, 0, 0, 2], at="blocks at places 1 and 4 of 6 are found")


def test_18_4_a_gap_begins_the_run_anew(hy: Any) -> None:
    """Window 9: blocks 5 and 3 are no neighbours."""
    got = hit(hy, hy.manager(hy.window(9)), [1, 2, 5])
    expect(got, [0, 1, 2], at="blocks at places 1, 2 and 5 are found")


def test_18_4_a_short_run_counts_from_block_0_only(hy: Any) -> None:
    """Window 13 needs three, unless there is nothing before: token 8 reads 0 to 7."""
    got = hit(hy, hy.manager(hy.window(13)), [0, 1, 3, 4])
    expect(got, [1, 2], at="blocks at places 0, 1, 3, 4 are found, window 13")
    got = hit(hy, hy.manager(hy.window(13)), [1, 2, 4])
    expect(got, [], at="blocks at places 1, 2, 4 are found, window 13: no run of 3, none from 0")


def test_18_4_no_hit_goes_beyond_the_limit(hy: Any) -> None:
    """Of at most 15 tokens, 3 blocks are whole."""
    got = hit(hy, hy.manager(hy.window(5)), [0, 1, 2, 3], max_length=15)
    expect(got, [0, 0, 3], at="blocks at places 0 to 3 are found, at most 15 tokens")


def test_18_4_a_hit_ends_at_the_alignment(hy: Any) -> None:
    """Another group has blocks of 8: a run may end with block 1, 3 or 5, not with 4."""
    got = hit(hy, hy.manager(hy.window(9)), [2, 3, 4], alignment=8)
    expect(got, [0, 0, 1, 2], at="blocks at places 2, 3, 4 are found, alignment 8")
    got = hit(hy, hy.manager(hy.window(17)), [0, 1, 2], alignment=8)
    expect(got, [1, 2], at="blocks 0, 1, 2 are found, window 17, alignment 8: cut to 8 tokens")


def test_18_4_all_groups_of_a_kind_must_have_it(hy: Any) -> None:
    """Group 0 has block 4, group 2 does not; both have block 1."""
    manager, request = hy.manager(hy.window(5)), hy.request("ana", 24)
    hy.file(manager, request, {0: [1, 4], 2: [1]})
    got = [hy.ids(table) for table in manager.find_hit(request, 24, [0, 2], 4)]
    expect(got, [[0, 1], [0, 3]], at="tables of groups 0 and 2")
    chunks = hy.manager(hy.local(16))
    hy.file(chunks, request, {0: [4, 5], 2: [4]})
    got = [hy.ids(table) for table in chunks.find_hit(request, 24, [0, 2], 4)]
    expect(got, [[0] * 4 + [1], [0] * 4 + [3]], at="chunks of 16: tables of groups 0 and 2")


def test_18_4_before_the_chunk_all_counts_as_found(hy: Any) -> None:
    """Token 22 reads 16 to 22: blocks 0 to 3 are null, block 4 is there."""
    got = hit(hy, hy.manager(hy.local(16)), [4], max_length=22)
    expect(got, [0, 0, 0, 0, 1], at="chunks of 16, only block 4 is found, at most 22 tokens")
    got = hit(hy, hy.manager(hy.local(16)), [0, 5], max_length=23)
    expect(got, [0, 0, 0, 0], at="block 4 is missing: what is before the chunk, no more")
    got = hit(hy, hy.manager(hy.local(8)), [], max_length=24)
    expect(got, [0] * 6, at="chunks of 8, at most 24 tokens: token 24 begins a chunk")


def test_18_4_inside_the_chunk_the_first_miss_ends_it(hy: Any) -> None:
    """Chunk of 32: blocks are counted from the left, up to the first gap."""
    got = hit(hy, hy.manager(hy.local(32)), [0, 1, 3], max_length=24)
    expect(got, [1, 2], at="chunks of 32, blocks 0, 1 and 3 are found")


def test_18_4_nothing_is_held(hy: Any) -> None:
    """A lookup may be repeated any number of times."""
    manager, request = hy.manager(hy.window(5)), hy.request("ana", 24)
    hy.file(manager, request, {0: [1, 4]})
    before = hy.free(manager)
    manager.find_hit(request, 24, [0], 4)
    expect(hy.free(manager), before, at="the free queue after a lookup")
