"""Task 07.4: add to the residual and normalise, in one trip through memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.kernels.direct import solve
from labkit.testing import expect
from mini_vllm.kernels.pointwise import RMS_NORM

EPS = 1e-6


def run(x: Tensor, weight: Tensor, residual: Tensor | None = None, eps: float = EPS) -> Tensor:
    """The kernel's output; it starts as NaN, so that what is not written shows."""
    output = torch.full(x.shape, torch.nan, dtype=x.dtype)
    solve(RMS_NORM, dict(x=x, weight=weight, output=output, eps=eps, residual=residual))
    return output


def norm(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.double()


def test_07_4_a_row_by_hand(close: Any) -> None:
    """3, 4 and two zeros: mean square 25 / 4, root 2.5; so 1.2 and 1.6."""
    yours = run(torch.tensor([[3.0, 4.0, 0.0, 0.0]]), torch.tensor([1.0, 10.0, 1.0, 1.0]))
    close(yours, torch.tensor([[1.2, 16.0, 0.0, 0.0]]), at="norm of 3 4 0 0, weights 1 10 1 1")


def test_07_4_many_rows(close: Any) -> None:
    """Each row has its own scale; all share the weight."""
    torch.manual_seed(0)
    x, weight = torch.randn(5, 64), torch.randn(64)
    close(run(x, weight), norm(x, weight), at="5 rows of 64")


def test_07_4_a_size_that_is_no_power_of_two(close: Any) -> None:
    """The tile has 128 lanes, the row 80: the mean divides by 80, and lane 80 is masked."""
    torch.manual_seed(1)
    x, weight = torch.randn(3, 80), torch.randn(80)
    close(run(x, weight), norm(x, weight), at="3 rows of 80")


def test_07_4_rows_of_a_wider_matrix(close: Any) -> None:
    """x may be a slice: its rows are `x_stride` apart, the output's are SIZE apart."""
    torch.manual_seed(2)
    wide, weight = torch.randn(4, 100), torch.randn(32)
    x = wide[:, 10:42]
    close(run(x, weight), norm(x, weight), at="columns 10 to 41 of a 4 x 100 matrix")


def test_07_4_every_head_has_its_weight(close: Any) -> None:
    """QK-norm: x [T, H, D], weight [H, D]; program (t, h) does one head."""
    torch.manual_seed(3)
    x, weight = torch.randn(3, 4, 16), torch.randn(4, 16)
    close(run(x, weight), norm(x, weight), at="3 tokens, 4 heads of 16: output[t, h, d]")


def test_07_4_eps_is_inside_the_root(close: Any) -> None:
    """A row of small numbers: eps 1 decides, and a row of zeros stays zero instead of NaN."""
    x, weight = torch.tensor([[0.5, -0.5], [0.0, 0.0]]), torch.ones(2)
    close(run(x, weight, eps=1.0), norm(x, weight, eps=1.0), at="rows 0.5 -0.5 and 0 0, eps 1")


def test_07_4_the_sum_is_normalised(close: Any) -> None:
    """With a residual, the norm is that of x + residual."""
    torch.manual_seed(4)
    x, residual, weight = torch.randn(3, 48), torch.randn(3, 48), torch.randn(48)
    expected = norm(x + residual, weight)
    close(run(x, weight, residual), expected, at="norm of x + residual, 3 rows of 48")


def test_07_4_the_residual_becomes_the_sum(close: Any) -> None:
    """The stream is updated in place; the next layer adds to it."""
    torch.manual_seed(5)
    x, residual, weight = torch.randn(3, 48), torch.randn(3, 48), torch.randn(48)
    total = x + residual
    run(x, weight, residual)
    close(residual, total, at="the residual after the call")


def test_07_4_x_is_only_read() -> None:
    """The sum goes to the residual, not to x."""
    x, residual = torch.ones(2, 16), torch.ones(2, 16)
    run(x, torch.ones(16), residual)
    expect(x.eq(1).all().item(), True, at="x is unchanged")


def test_07_4_squares_are_summed_in_float32(close: Any) -> None:
    """300 squared is 90,000; float16 ends at 65,504."""
    x = torch.full((1, 32), 300.0, dtype=torch.float16)
    yours = run(x, torch.ones(32, dtype=torch.float16))
    close(yours, torch.ones(1, 32), at="float16 row of 300s", tolerance=1e-3)


def test_07_4_the_sum_is_rounded_before_it_is_normalised(close: Any) -> None:
    """What is normalised is what the residual keeps: 2048 + 1 is 2048 in float16."""
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float16)
    residual = torch.tensor([[2048.0, 768.0]], dtype=torch.float16)
    yours = run(x, torch.ones(2, dtype=torch.float16), residual)
    close(residual, torch.tensor([[2048.0, 768.0]]), at="the residual in float16")
    at = "norm of 2048 + 1 and 768 + 0; with 2049 instead of 2048 the second is 0.49633789"
    close(yours, torch.tensor([[1.32421875, 0.49658203]]), at=at)


def test_07_4_the_row_is_rounded_before_the_weight_multiplies_it(close: Any) -> None:
    """As Hugging Face does: 12 and 8 become 1.1767578125 and 0.78466796875 in float16."""
    x = torch.tensor([[12.0, 8.0]], dtype=torch.float16)
    yours = run(x, torch.tensor([6.0, 10.0], dtype=torch.float16))
    at = "norm of 12 and 8, weights 6 and 10; rounded only once they are 7.05859375 and 7.84375"
    close(yours, torch.tensor([[7.0625, 7.84765625]]), at=at)
