"""Task 04.1: from a position to a slot."""

from __future__ import annotations

import torch

from labkit.testing import expect
from mini_vllm.attention.reference import compute_slot_mapping


def slots(table: list[list[int]], rows: list[int], positions: list[int], size: int) -> list[int]:
    int32 = torch.int32
    mapping = compute_slot_mapping(
        torch.tensor(table, dtype=int32),
        torch.tensor(rows, dtype=int32),
        torch.tensor(positions, dtype=int32),
        size,
    )
    return [int(slot) for slot in mapping]


def test_04_1_a_prompt_over_two_pages() -> None:
    """Six tokens in blocks 7 and 2: the second page may lie before the first."""
    at = "ana's prompt has 6 tokens; block size 4"
    yours = slots([[7, 2]], [0] * 6, [0, 1, 2, 3, 4, 5], 4)
    expect(yours, [28, 29, 30, 31, 8, 9], at=at, block_table=[7, 2])


def test_04_1_each_token_asks_its_own_row() -> None:
    """Three requests in one flat batch; each token is looked up in its own block table."""
    table = [[3, 9, 1], [5, 0, 0], [8, 4, 0]]
    at = "ana decodes at position 9, ben computes 0 to 2, cleo decodes at 4; block size 4"
    yours = slots(table, [0, 1, 1, 1, 2], [9, 0, 1, 2, 4], 4)
    expect(yours, [5, 20, 21, 22, 16], at=at, block_tables=table)


def test_04_1_blocks_of_one_token() -> None:
    """With blocks of one token the block table lists the slots themselves."""
    yours = slots([[6, 2, 4]], [0, 0], [1, 2], 1)
    expect(yours, [2, 4], at="positions 1 and 2; block size 1", block_table=[6, 2, 4])


def test_04_1_slots_are_int64() -> None:
    """Tables and positions are int32; slots are int64, or a large cache overflows."""
    table = torch.tensor([[2**27]], dtype=torch.int32)
    zero, three = torch.zeros(1, dtype=torch.int32), torch.full((1,), 3, dtype=torch.int32)
    yours = compute_slot_mapping(table, zero, three, 16)
    expect(yours.dtype, torch.int64, at="the type of the result")
    expect(yours.tolist(), [2**31 + 3], at="block 2^27, offset 3, block size 16")
