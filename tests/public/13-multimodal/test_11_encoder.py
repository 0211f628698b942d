"""13.11: where patches lie, and whom they see."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from labkit.testing import expect
from mini_vllm.model.qwen3_vl import attend_within_pictures, patch_positions


def test_13_11_blocks_of_four_lie_together() -> None:
    """4 x 4 patches merged by 2: row and column of each, block after block."""
    wanted = [
        [0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3],
        [2, 0], [2, 1], [3, 0], [3, 1], [2, 2], [2, 3], [3, 2], [3, 3],
    ]  # fmt: skip
    expect(patch_positions(4, 4, 2).tolist(), wanted, at="grid 4 x 4, merge 2: row and column")


def test_13_11_a_picture_need_not_be_square() -> None:
    """2 x 4 and 4 x 2 patches, merged by 2."""
    wide = [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]
    expect(patch_positions(2, 4, 2).tolist(), wide, at="2 rows, 4 columns")
    tall = [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1], [3, 0], [3, 1]]
    expect(patch_positions(4, 2, 2).tolist(), tall, at="4 rows, 2 columns")


def test_13_11_without_merging_row_by_row() -> None:
    """With merge 1 the patches lie row by row."""
    wanted = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    expect(patch_positions(2, 3, 1).tolist(), wanted, at="grid 2 x 3, merge 1")
    expect(patch_positions(2, 3, 1).dtype, torch.int64, at="dtype")


def three(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(count, 2, 4, generator=generator) for _ in range(3)]


def test_13_11_a_picture_sees_itself() -> None:
    """A patch sees all of its picture, before and behind it."""
    query, key, value = three(5)
    swapped = [x.transpose(0, 1) for x in (query, key, value)]
    wanted = F.scaled_dot_product_attention(*swapped).transpose(0, 1)
    close(attend_within_pictures(query, key, value, [5]), wanted, "one picture of 5 patches")


def test_13_11_and_no_other() -> None:
    """Each picture comes out as if it were alone."""
    query, key, value = three(9)
    yours = attend_within_pictures(query, key, value, [2, 4, 3])
    start = 0
    for length in (2, 4, 3):
        part = slice(start, start + length)
        alone = attend_within_pictures(query[part], key[part], value[part], [length])
        close(yours[part], alone, f"patches {start} .. {start + length} of 9")
        start += length


def close(yours: torch.Tensor, wanted: torch.Tensor, at: str) -> None:
    expect(tuple(yours.shape), tuple(wanted.shape), at=f"{at}: shape [P, heads, D]")
    wrong = ~((yours - wanted).abs() < 1e-5)  # NaN is not below anything
    for patch, head, number in wrong.nonzero().tolist():
        found, right = (float(f"{x[patch, head, number]:.6g}") for x in (yours, wanted))
        place = f"{at}: patch {patch}, head {head}, number {number}"
        expect(found, right, at=place, wrong=f"{int(wrong.sum())} of {wrong.numel()} numbers")
