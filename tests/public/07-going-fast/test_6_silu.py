"""Task 07.6: silu(gate) * up without a trip to memory in between."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.kernels.direct import solve
from mini_vllm.kernels.pointwise import SILU_MUL


def run(gate_up: Tensor) -> Tensor:
    size = gate_up.shape[1] // 2
    output = torch.full((len(gate_up), size), torch.nan, dtype=gate_up.dtype)
    solve(SILU_MUL, dict(gate_up=gate_up, output=output))
    return output


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, -1)
    return gate / (1 + torch.exp(-gate)) * up


def test_07_6_a_row_by_hand(close: Any) -> None:
    """silu(0) is 0, silu of a large number is that number."""
    gate_up = torch.tensor([[0.0, 100.0, 7.0, 2.0]])
    close(run(gate_up), torch.tensor([[0.0, 200.0]]), at="gate 0 100, up 7 2")


def test_07_6_gate_comes_first(close: Any) -> None:
    """The left half of a row is gate; silu(2) * 1 is not silu(1) * 2."""
    gate_up = torch.tensor([[2.0, 1.0]])
    close(run(gate_up), torch.tensor([[1.7615942]]), at="gate 2, up 1")


def test_07_6_rows_of_two_tiles(close: Any) -> None:
    """1,500 numbers: program (t, 1) does 1024 to 1499, and masks the rest of its tile."""
    torch.manual_seed(0)
    gate_up = torch.randn(2, 3000)
    close(run(gate_up), silu_mul(gate_up), at="2 rows of 1,500")


def test_07_6_several_short_rows(close: Any) -> None:
    """Row t of gate_up begins at t * 2 * SIZE."""
    torch.manual_seed(1)
    gate_up = torch.randn(5, 24)
    close(run(gate_up), silu_mul(gate_up), at="5 rows of 12")


def test_07_6_a_very_negative_gate_gives_zero(close: Any) -> None:
    """exp(100) is infinite in float32, and a number divided by it is 0, not NaN."""
    gate_up = torch.tensor([[-100.0, -1000.0, 5.0, 5.0]])
    close(run(gate_up), torch.zeros(1, 2), at="gate -100 -1000, up 5 5")


def test_07_6_float16_is_rounded_once(close: Any) -> None:
    """Computed in float32: exp of a float16 would end at 65,504."""
    gate_up = torch.tensor([[-12.0, -11.5, 8.0, 4.0]], dtype=torch.float16)
    close(run(gate_up), silu_mul(gate_up), at="float16 gates -12 -11.5, up 8 4", tolerance=2e-7)
