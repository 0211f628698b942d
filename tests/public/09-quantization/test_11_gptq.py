"""Task 09.11: GPTQ: correct the columns that follow."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.quantization.oneshot.gptq import gptq_quantize


def meaning(parts: Any) -> torch.Tensor:
    """The weights that GPTQ's four tensors mean."""
    stored, scale, zero, group = parts
    columns = group.long()
    return (stored - zero[:, columns]) * scale[:, columns]


def rounded(weight: torch.Tensor, size: int) -> torch.Tensor:
    """Plain rounding, symmetric, 4 bits, written out."""
    groups = weight.unflatten(1, (-1, size))
    scale = groups.abs().amax(-1, keepdim=True) / 7
    return ((groups / scale).round().clamp(-8, 7) * scale).flatten(1)


def inputs(lab: Any) -> torch.Tensor:
    """Tokens whose inputs have much to do with each other."""
    return lab.random(200, 16) @ (torch.eye(16) + 0.8 * lab.random(16, 16, seed=1))


def test_09_11_unrelated_inputs_are_plain_rounding(lab: Any) -> None:
    """With the identity for a Hessian no error spreads."""
    weight = lab.random(3, 8)
    found = meaning(gptq_quantize(weight, torch.eye(8), 4, 4, True))
    expect(lab.listed(found), lab.listed(rounded(weight, 4)), at="H = I")


def test_09_11_the_output_is_nearer_than_with_rounding(lab: Any) -> None:
    """On the inputs that it has seen."""
    x, weight = inputs(lab), lab.random(8, 16, seed=2)
    for act_order in (False, True):
        found = meaning(gptq_quantize(weight, x.T @ x, 4, 8, True, act_order))
        ours = float((x @ (found - weight).T).norm())
        plain = float((x @ (rounded(weight, 8) - weight).T).norm())
        at = f"act_order={act_order}"
        expect(ours < 0.95 * plain, True, at=at, ours=ours, rounding=plain)


def test_09_11_groups_in_order_of_importance(lab: Any) -> None:
    """With act_order the loudest inputs share the first group, wherever they stand."""
    x = inputs(lab) * torch.tensor([1.0, 9.0, 1.0, 9.0] * 4)
    group = gptq_quantize(lab.random(4, 16), x.T @ x, 4, 8, True, act_order=True)[3]
    expect(group.tolist(), [1, 0, 1, 0] * 4, at="columns 1, 3, 5 ... are loud")


def test_09_11_without_it_groups_are_neighbours(lab: Any) -> None:
    """Columns 0 to 3, then 4 to 7."""
    x = inputs(lab)[:, :8]
    group = gptq_quantize(lab.random(2, 8), x.T @ x, 4, 4, True)[3]
    expect(group.tolist(), [0, 0, 0, 0, 1, 1, 1, 1], at="group_size=4")


def test_09_11_an_input_that_never_comes(lab: Any) -> None:
    """Its weights count as 0, and nothing divides by 0."""
    x = inputs(lab)
    x[:, 5] = 0
    found = meaning(gptq_quantize(lab.random(4, 16), x.T @ x, 4, 8, True))
    expect(found[:, 5].tolist(), [0.0] * 4, at="column 5 gets no input")
    expect(bool(found.isfinite().all()), True, at="all others")


def test_09_11_what_came_in_stays(lab: Any) -> None:
    """Weight and Hessian are left as they were."""
    weight, hessian = lab.random(2, 8), torch.eye(8)
    hessian[3, 3] = 0  # an input that never comes
    before, hessian_before = weight.clone(), hessian.clone()
    gptq_quantize(weight, hessian, 4, 4, True)
    expect(bool(torch.equal(weight, before)), True, at="the weight that was given")
    expect(bool(torch.equal(hessian, hessian_before)), True, at="the Hessian that was given")


def test_09_11_a_scale_is_chosen_when_its_group_is_reached() -> None:
    """Column 1 is rounded from 0.5 to 0; column 2 takes that over, and grows from 7 to 7.4455."""
    hessian = torch.eye(4)
    hessian[1, 2] = hessian[2, 1] = 0.9
    weight = torch.tensor([[7.0, 0.5, 7.0, 1.0]])
    scale = gptq_quantize(weight, hessian, 4, 2, True)[1]
    expect([round(float(s), 2) for s in scale[0]], [1.0, 1.06], at="largest / 7 of both groups")
