"""Change request 2, over many magnitudes."""

from __future__ import annotations

import math

import pytest
import torch

from mini_vllm.quantization.int8 import MIN_SCALE, quantize_per_token


@pytest.mark.parametrize("seed", range(20))
def test_change_2_the_smallest_that_fits(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(6, 9) * 10.0 ** torch.randint(-3, 4, (6, 1))
    q, scale = quantize_per_token(x)
    for row in range(6):
        value = float(scale[row])
        assert math.frexp(value)[0] == 0.5
        largest = float(x[row].abs().max())
        assert largest / value <= 127.0001
        assert largest / (value / 2) > 126.999 or value / 2 < MIN_SCALE
    assert torch.equal(q, (x / scale).round().to(torch.int8))


@pytest.mark.parametrize("exponent", range(-20, 21))
def test_change_2_at_every_power(exponent: int) -> None:
    x = torch.tensor([[127.0 * 2.0**exponent]])
    assert float(quantize_per_token(x)[1]) == 2.0**exponent


def test_change_2_silence() -> None:
    q, scale = quantize_per_token(torch.zeros(1, 4))
    assert not q.any() and float(scale) >= MIN_SCALE and math.frexp(float(scale))[0] == 0.5
