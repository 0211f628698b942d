"""Task 11.7: many adapters on a CPU, two ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.lora.ops import apply_dense, apply_grouped


def dense(rows: Any) -> torch.Tensor:
    y = rows.y.clone()
    result = apply_dense(rows.x, y, rows.lora_a, rows.lora_b, rows.columns, rows.foreign)
    expect(result, None, at="what apply_dense returns: it works in place")
    return y


def grouped(rows: Any) -> torch.Tensor:
    y = rows.y.clone()
    result = apply_grouped(rows.x, y, rows.lora_a, rows.lora_b, rows.columns, rows.groups)
    expect(result, None, at="what apply_grouped returns: it works in place")
    return y


WAYS = pytest.mark.parametrize("way", [dense, grouped], ids=["dense", "grouped"])


@WAYS
def test_11_7_one_row(lab: Any, way: Any) -> None:
    """One row, one adapter, one slice."""
    rows = lab.Rows([0], widths=[3], num_slots=1)
    rows.check(way(rows), "one row with slot 0")


@WAYS
def test_11_7_every_row_its_own(lab: Any, way: Any) -> None:
    """Three adapters and the base, in any order, three slices of unequal width."""
    rows = lab.Rows([2, 0, -1, 1, 0, 2, -1])
    rows.check(way(rows), "slots 2 0 - 1 0 2 -")


@WAYS
def test_11_7_the_base_keeps_every_bit(lab: Any, way: Any) -> None:
    """-1 is no slot: not the last one."""
    rows = lab.Rows([-1, 2, -1, -1])
    rows.check(way(rows), "slots - 2 - -")


@WAYS
def test_11_7_no_row_has_an_adapter(lab: Any, way: Any) -> None:
    """Only rows of the base: nothing changes."""
    rows = lab.Rows([-1, -1])
    rows.check(way(rows), "slots - -")


@WAYS
def test_11_7_a_strange_slot_is_infinite(lab: Any, way: Any) -> None:
    """Infinities in another customer's slot touch only the rows of that customer."""
    rows = lab.Rows([0, 1, -1, 0])
    rows.lora_a[1].fill_(torch.inf)
    y = way(rows)
    finite = [bool(row.isfinite().all()) for row in y]
    expect(finite, [True, False, True, True], at="rows without NaN or infinity", slots=rows.slots)


@WAYS
def test_11_7_into_a_slice_of_a_wider_matrix(lab: Any, way: Any) -> None:
    """y may be a view: what lies beside it stays."""
    rows = lab.Rows([1, 0, 1])
    wide = torch.full((3, 20), 9.0)
    wide[:, 5:13] = rows.y
    expected, rows.y = rows.expected(), wide[:, 5:13]
    apply, chosen = (apply_dense, rows.foreign) if way is dense else (apply_grouped, rows.groups)
    apply(rows.x, rows.y, rows.lora_a, rows.lora_b, rows.columns, chosen)
    near = torch.allclose(wide[:, 5:13], expected, atol=1e-5)
    expect(near, True, at="the view has the deltas")
    rest = bool((wide[:, :5] == 9).all() and (wide[:, 13:] == 9).all())
    expect(rest, True, at="the numbers beside the view are as they were")


@WAYS
def test_11_7_the_adapters_stay_as_they_are(lab: Any, way: Any) -> None:
    """Neither x nor the slots are written."""
    rows = lab.Rows([0, 1, 2])
    before = [t.clone() for t in (rows.x, rows.lora_a, rows.lora_b)]
    way(rows)
    same = all(map(torch.equal, before, (rows.x, rows.lora_a, rows.lora_b)))
    expect(same, True, at="x, lora_a and lora_b afterwards")


def test_11_7_dense_with_a_single_slot(lab: Any) -> None:
    """foreign is None: every row uses the one slot that there is."""
    rows = lab.Rows([0, 0, 0, 0], num_slots=1)
    expect(rows.foreign, None, at="what is foreign")
    rows.check(dense(rows), "four rows with slot 0")
