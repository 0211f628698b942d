"""Change request 1, over random shapes."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.attention.reference import causal_mask


@pytest.mark.parametrize("seed", range(40))
def test_change_1_every_entry(seed: int) -> None:
    rng = Random(seed)
    length = rng.randint(1, 20)
    query, window = rng.randint(1, length), rng.choice((None, 1, 2, 5, 30))
    mask = causal_mask(query, length, window)
    assert tuple(mask.shape) == (query, length)
    for row in range(query):
        position = length - query + row
        for key in range(length):
            near = window is None or key > position - window or key < 4
            assert bool(mask[row, key]) == (key <= position and near)
