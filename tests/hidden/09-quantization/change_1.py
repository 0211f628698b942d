"""Change request 1, over random matrices."""

from __future__ import annotations

import pytest
import torch

from mini_vllm.quantization.packing import choose_qparams


@pytest.mark.parametrize("seed", range(30))
def test_change_1_every_group(seed: int) -> None:
    torch.manual_seed(seed)
    group, bits = [1, 2, 4, 8][seed % 4], [4, 8][seed % 2]
    weight = torch.randn(3, 16) * (torch.rand(3, 16) < 0.6)
    scale, zero = choose_qparams(weight, bits, group, True)
    for row in range(3):
        for index in range(16 // group):
            part = sorted(weight[row, index * group : (index + 1) * group].abs().tolist())
            second = part[-2] if group > 1 and part[-2] > 0 else part[-1]
            right = second / (2 ** (bits - 1) - 1) if second > 0 else 1.0
            assert float(scale[row, index]) == pytest.approx(right)
    assert (zero == 2 ** (bits - 1)).all()


def test_change_1_asymmetric_as_before() -> None:
    scale, zero = choose_qparams(torch.tensor([[-1.0, 14.0, 2.0, 0.0]]), 4, 4, False)
    assert float(scale) == pytest.approx(1.0) and int(zero) == 1
