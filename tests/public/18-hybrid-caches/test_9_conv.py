"""Task 18.9: a short convolution over several requests, which goes on in the next step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.testing import expect
from mini_vllm.model.mixers.causal_conv import ConvRows, causal_conv


def numbers(*values: float) -> Tensor:
    """One channel, a number a token."""
    return torch.tensor(values, dtype=torch.float64)[:, None]


def plainly(x: Tensor, weight: Tensor, tail: Tensor) -> Tensor:
    """One request, output by output."""
    rows, width = torch.cat((tail, x)), weight.shape[1]
    outs = [sum(weight[:, j] * rows[t + j] for j in range(width)) for t in range(len(x))]
    return torch.stack(outs)  # type: ignore[arg-type]


def test_18_9_an_output_mixes_the_last_inputs(hy: Any) -> None:
    """Weights 1, 10, 100: the newest input counts most. Before the first token are zeros."""
    weight = torch.tensor([[1.0, 10.0, 100.0]], dtype=torch.float64)
    tail = torch.zeros(1, 2, 1, dtype=torch.float64)
    y, new = causal_conv(numbers(1, 2, 3, 4), weight, None, tail, ConvRows([4], 3))
    at = "inputs 1, 2, 3, 4; the first is 100 * 1, the second 10 * 1 + 100 * 2"
    expect(y[:, 0].tolist(), [100.0, 210.0, 321.0, 432.0], at=at)
    expect(new[0, :, 0].tolist(), [3.0, 4.0], at="the new tail: the last two inputs")


def test_18_9_the_tail_is_inputs_not_outputs(hy: Any) -> None:
    """Whatever weight and bias make of them."""
    weight, bias = torch.tensor([[2.0, 3.0]]), torch.tensor([5.0])
    y, new = causal_conv(
        torch.tensor([[1.0], [4.0]]), weight, bias, torch.full((1, 1, 1), 7.0), ConvRows([2], 2)
    )
    expect(y[:, 0].tolist(), [22.0, 19.0], at="2 * 7 + 3 * 1 + 5, then 2 * 1 + 3 * 4 + 5")
    expect(new.flatten().tolist(), [4.0], at="the new tail: the last input")


def test_18_9_steps_of_one_token_give_the_same(hy: Any) -> None:
    """7 tokens at once, or in steps of 1, 2, 1, 3: a short step keeps the end of the old tail."""
    x, weight = hy.random(7, 3), hy.random(3, 4, seed=1)
    tail = torch.zeros(1, 3, 3, dtype=torch.float64)
    whole, end = causal_conv(x, weight, None, tail, ConvRows([7], 4))
    outs = []
    for part in x.split([1, 2, 1, 3]):
        y, tail = causal_conv(part, weight, None, tail, ConvRows([len(part)], 4))
        outs.append(y)
    hy.near(torch.cat(outs), whole, "outputs of steps of 1, 2, 1, 3 tokens against those of 7")
    hy.near(tail, end, "the tail at the end, of steps against at once")


def test_18_9_requests_do_not_mix(hy: Any) -> None:
    """Three requests of 3, 1, 5 tokens in one flat batch, each with its own tail."""
    lens = [3, 1, 5]
    x, weight, tails = hy.random(9, 2), hy.random(2, 4, seed=1), hy.random(3, 3, 2, seed=2)
    y, new = causal_conv(x, weight, None, tails, ConvRows(lens, 4))
    parts = zip(x.split(lens), tails, strict=True)
    hy.near(y, torch.cat([plainly(own, weight, tail) for own, tail in parts]), "outputs")
    ends = [torch.cat((tail, own))[-3:] for own, tail in zip(x.split(lens), tails, strict=True)]
    hy.near(new, torch.stack(ends), "new tails")


def test_18_9_arguments_stay_as_they_are(hy: Any) -> None:
    """Tails lie in the cache: the caller writes the new ones there."""
    x, weight, tails = hy.random(4, 2), hy.random(2, 3), hy.random(2, 2, 2, seed=2)
    before = [one.clone() for one in (x, weight, tails)]
    causal_conv(x, weight, None, tails, ConvRows([3, 1], 3))
    for name, now, old in zip(("x", "weight", "tails"), (x, weight, tails), before, strict=True):
        hy.near(now, old, f"{name} after the call")


def test_18_9_tails_of_another_dtype(hy: Any) -> None:
    """A cache may hold bfloat16; outputs and new tails have the dtype of x."""
    tails = hy.random(1, 2, 2).bfloat16()
    x, weight = hy.random(2, 2, dtype="float32"), hy.random(2, 3, dtype="float32")
    y, new = causal_conv(x, weight, None, tails, ConvRows([2], 3))
    expect([str(one.dtype) for one in (y, new)], ["torch.float32"] * 2, at="outputs, new tails")


def test_18_9_no_pass_over_all_for_each_request(hy: Any) -> None:
    """64 requests cost as many steps of Python as 4: one pass serves all."""
    from labkit.inside.cost import steps

    costs = []
    for requests in (4, 64):
        x, tails = hy.random(requests, 2), hy.random(requests, 3, 2)
        rows = ConvRows([1] * requests, 4)
        costs.append(steps(causal_conv, x, hy.random(2, 4), None, tails, rows))
    assert costs[1] < 1.5 * costs[0], f"4 requests cost {costs[0]} steps, 64 cost {costs[1]}"
