"""Change request 1, over random steps of up to a hundred requests."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.worker.input_batch import decodes_first


@pytest.mark.parametrize("seed", range(30))
def test_change_1_a_stable_order(seed: int) -> None:
    rng = Random(seed)
    tokens = [rng.choice((1, 1, 2, 3, 50)) for _ in range(rng.randint(1, 100))]
    order = [int(i) for i in decodes_first(iter(tokens))]
    assert order == sorted(range(len(tokens)), key=lambda i: (tokens[i], i))
