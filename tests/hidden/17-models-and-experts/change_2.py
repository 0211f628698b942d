"""Change request 2, over random prompts and chunks: beside one product over the whole prompt."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import Tensor

from mini_vllm.pooling.seqwise import pool_chunk


def cuts(rng: Random, length: int) -> list[int]:
    """Where chunks end."""
    inner = rng.sample(range(1, length), rng.randint(0, min(5, length - 1))) if length > 1 else []
    return [*sorted(inner), length]


@pytest.mark.parametrize("seed", range(40))
def test_change_2_random_chunks(seed: int) -> None:
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)
    length = rng.randint(1, 60)
    states = torch.randn(length, 8, generator=generator)
    weights = torch.arange(1, length + 1, dtype=torch.float64)
    wanted = weights @ states.double() / weights.sum()
    kept: list[Tensor] = []
    if rng.random() < 0.5:  # preempted once, behind a first chunk
        part = rng.randint(1, length)
        if part < length:
            assert pool_chunk("WEIGHTEDMEAN", states[:part].clone(), part, length, kept) is None
    start, result = 0, None
    for end in cuts(rng, length):
        assert result is None
        chunk = states[start:end].clone()
        result = pool_chunk("WEIGHTEDMEAN", chunk, end, length, kept)
        chunk.fill_(float("nan"))
        start = end
    assert result is not None and result.shape == (1, 8) and result.dtype == torch.float32
    assert not kept
    torch.testing.assert_close(result[0].double(), wanted, rtol=1e-5, atol=1e-6)


def test_change_2_long_prompts_in_half_the_width() -> None:
    """Summed in float32: in bfloat16 a sum of 1 + 2 + ... + 2000 stands still."""
    kept: list[Tensor] = []
    for end in range(100, 2001, 100):
        result = pool_chunk("WEIGHTEDMEAN", torch.ones(100, 1).bfloat16(), end, 2000, kept)
    assert result is not None and result.item() == pytest.approx(1.0, rel=1e-5)


def test_change_2_two_prompts_do_not_meet() -> None:
    """What one keeps is its own."""
    first: list[Tensor] = []
    second: list[Tensor] = []
    pool_chunk("WEIGHTEDMEAN", torch.tensor([[1.0]]), 1, 2, first)
    pool_chunk("WEIGHTEDMEAN", torch.tensor([[5.0]]), 1, 2, second)
    one = pool_chunk("WEIGHTEDMEAN", torch.tensor([[4.0]]), 2, 2, first)
    other = pool_chunk("WEIGHTEDMEAN", torch.tensor([[8.0]]), 2, 2, second)
    assert one is not None and other is not None
    assert [one.item(), other.item()] == pytest.approx([3.0, 7.0])
