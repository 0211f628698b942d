"""Task 17.7: pairs in tiles of one expert each."""

from __future__ import annotations

import torch

from labkit.testing import expect
from mini_vllm.kernels.moe_layout import moe_align_block_size

IDS = torch.tensor([[3, 0], [3, 3], [0, 0], [3, 3], [0, 8]])
"""The module's picture: ten pairs of experts 0, 3 and 8."""


def test_17_7_the_picture() -> None:
    """Four pairs fill a tile of expert 0, five need two of expert 3, one is alone."""
    places, experts, rows = moe_align_block_size(IDS, 4, 9)
    expect(
        places[:16].tolist(), [1, 4, 5, 8, 0, 2, 3, 6, 7, 10, 10, 10, 9, 10, 10, 10], at="places"
    )
    expect(experts[:5].tolist(), [0, 3, 3, 8, -1], at="the expert of each tile")
    expect(rows.tolist(), [16], at="rows, padding included")


def test_17_7_as_many_tiles_as_the_worst_case() -> None:
    """10 pairs, 9 experts, tiles of 4: ceil((10 + 27) / 4) = 10, and no more than pairs."""
    places, experts, _ = moe_align_block_size(IDS, 4, 9)
    expect((len(places), len(experts)), (40, 10), at="10 pairs of 9 experts, tiles of 4")
    places, experts, _ = moe_align_block_size(torch.tensor([[7, 2]]), 16, 64)
    expect((len(places), len(experts)), (32, 2), at="2 pairs of 64 experts, tiles of 16")
    places, experts, _ = moe_align_block_size(IDS, 4, 2 * 4 + 1)
    few = moe_align_block_size(torch.zeros(16, 1, dtype=torch.int64), 8, 2)
    expect(len(few[1]), 4, at="16 pairs of 2 experts, tiles of 8: ceil(30 / 8)")


def test_17_7_sizes_do_not_depend_on_the_choice() -> None:
    """All pairs of one expert, or each of another: as many tiles, so that a graph can hold them."""
    one = moe_align_block_size(torch.zeros(6, 1, dtype=torch.int64), 2, 6)
    each = moe_align_block_size(torch.arange(6)[:, None], 2, 6)
    expect([len(x) for x in one], [len(x) for x in each], at="6 pairs of 6 experts, tiles of 2")
    expect(one[1].tolist(), [0, 0, 0, -1, -1, -1], at="all of expert 0")
    expect(each[1].tolist(), [0, 1, 2, 3, 4, 5], at="one of each")


def test_17_7_a_full_tile_is_not_padded() -> None:
    """8 pairs of one expert in tiles of 4: two tiles, no padding."""
    places, experts, rows = moe_align_block_size(torch.full((8, 1), 1), 4, 2)
    expect(places[:8].tolist(), [*range(8)], at="places")
    expect((experts[:2].tolist(), rows.tolist()), ([1, 1], [8]), at="tiles, rows")


def test_17_7_behind_the_end_stand_no_pairs() -> None:
    """Every place that is not filled says P."""
    places, _, rows = moe_align_block_size(torch.tensor([[0, 1, 2]]), 4, 3)
    expect(places.tolist(), [0, 3, 3, 3, 1, 3, 3, 3, 2, 3, 3, 3], at="3 pairs of 3 experts")
    expect(rows.tolist(), [12], at="rows")


def test_17_7_all_is_int32() -> None:
    """All three results are int32, which is what kernels read."""
    found = [str(x.dtype) for x in moe_align_block_size(IDS, 4, 9)]
    expect(found, ["torch.int32"] * 3, at="dtypes")
    found = [str(x.dtype) for x in moe_align_block_size(IDS.int(), 4, 9)]
    expect(found, ["torch.int32"] * 3, at="dtypes, for int32 ids")


def test_17_7_nothing_is_asked_of_the_device() -> None:
    """A device without numbers gives the same shapes; `.item()` and `nonzero` fail on it."""
    ids = torch.zeros(5, 2, dtype=torch.int64, device="meta")
    try:
        found: object = [list(x.shape) for x in moe_align_block_size(ids, 4, 3)]
    except (NotImplementedError, RuntimeError) as error:
        if "TODO" in str(error):
            raise
        found = str(error).splitlines()[0]
    expect(found, [[20], [5], [1]], at="5 tokens of 2 experts on a device without numbers")
