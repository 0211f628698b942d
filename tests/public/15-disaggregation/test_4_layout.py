"""Task 15.4: gather and scatter the pieces of a block."""

from __future__ import annotations

import pytest
import torch

from labkit.testing import expect
from mini_vllm.kv_transfer.layout import gather_blocks, scatter_blocks


def cache() -> list[torch.Tensor]:
    """Two layers of 5 blocks; no number occurs twice."""
    shape = (2, 5, 2, 3, 2)
    numbers = torch.arange(2 * 5 * 2 * 3 * 2).view(shape).float()
    return [numbers.clone(), numbers + 1000]


def test_15_4_shape_and_order() -> None:
    """[n, L, 2, B, H, D], the i-th piece for the i-th id."""
    layers = cache()
    blocks = gather_blocks(layers, [3, 1])
    expect(list(blocks.shape), [2, 2, 2, 2, 3, 2], at="2 blocks of 2 layers")
    expect(blocks[0, 1, 0].tolist(), layers[1][0, 3].tolist(), at="block 3, layer 1, keys")
    expect(blocks[1, 0, 1].tolist(), layers[0][1, 1].tolist(), at="block 1, layer 0, values")
    expect(blocks.is_contiguous(), True, at="one piece of memory")


def test_15_4_a_copy_leaves() -> None:
    """What was gathered does not change with the cache, be it of one layer and of neighbours."""
    for layers, ids in ((cache(), [2]), (cache()[:1], [2, 3]), (cache()[:1], [1])):
        blocks = gather_blocks(layers, ids)
        expected = blocks.tolist()
        layers[0].zero_()
        at = f"blocks {ids} of {len(layers)} layer(s), after the cache was overwritten"
        expect(blocks.tolist(), expected, at=at)


def test_15_4_there_and_back() -> None:
    """Blocks come back bit for bit, at other places, and no other block changes."""
    layers, blank = cache(), [torch.zeros(2, 5, 2, 3, 2) for _ in range(2)]
    scatter_blocks(gather_blocks(layers, [4, 0]), blank, [1, 3])
    for number, (layer, new) in enumerate(zip(layers, blank, strict=True)):
        expect(new[:, [1, 3]].tolist(), layer[:, [4, 0]].tolist(), at=f"layer {number}")
        expect(float(new[:, [0, 2, 4]].abs().sum()), 0.0, at=f"layer {number}, other blocks")


def test_15_4_one_id_each() -> None:
    """Too few or too many ids are an error."""
    layers = cache()
    for ids in ([4, 0], [4]):
        with pytest.raises(ValueError):
            scatter_blocks(gather_blocks(layers, ids), layers, [1, 2][: 3 - len(ids)])
