"""Task 11.3: an adapter into a slot, and nothing else in it."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect


def test_11_3_a_pair_in_its_place(lab: Any) -> None:
    """A goes into the first rows, B transposed into the slice's columns."""
    layer, pair = lab.make_layer([4]), lab.pair(2, 2, 4)
    layer.set_lora(1, [pair])
    expect(layer.lora_a[1, 0, :2].tolist(), pair.a.tolist(), at="A of slot 1, rows 0 and 1")
    expect(layer.lora_b[1, :2].tolist(), pair.b.T.tolist(), at="B of slot 1, transposed")


def test_11_3_the_other_slots_stay(lab: Any) -> None:
    """Another slot may be in use: it keeps every number."""
    layer = lab.make_layer()
    layer.set_lora(1, [lab.pair(1, 2, 4), None, None])
    layer.reset_lora(1)
    same = bool((layer.lora_a[0] == 7).all() and (layer.lora_b[0] == 7).all())
    expect(same, True, at="slot 0, after slot 1 was set and reset")


def test_11_3_rows_behind_the_rank_are_zero(lab: Any) -> None:
    """An adapter of rank 1 in a slot of 3 rows: what an adapter of rank 3 has left is gone."""
    layer = lab.make_layer([4])
    layer.set_lora(0, [lab.pair(1, 2, 4)])
    expect(layer.lora_a[0, 0, 1:].tolist(), [[0.0] * 2] * 2, at="rows 1 and 2 of A")
    expect(layer.lora_b[0, 1:].tolist(), [[0.0] * 4] * 2, at="rows 1 and 2 of B")


def test_11_3_slices_of_unequal_width(lab: Any) -> None:
    """q has columns 0 to 3, k 4 and 5, v 6 and 7."""
    layer = lab.make_layer()
    pairs = [lab.pair(3, 2, 4), lab.pair(3, 2, 2, 2.0), lab.pair(3, 2, 2, 3.0)]
    layer.set_lora(0, pairs)
    for index, (part, pair) in enumerate(
        zip((slice(0, 4), slice(4, 6), slice(6, 8)), pairs, strict=True)
    ):
        expect(layer.lora_a[0, index].tolist(), pair.a.tolist(), at=f"A of slice {index}")
        expect(layer.lora_b[0, :, part].tolist(), pair.b.T.tolist(), at=f"B of slice {index}")


def test_11_3_slices_without_a_pair_are_zero(lab: Any) -> None:
    """A slice that the adapter lacks adds nothing."""
    layer = lab.make_layer()
    layer.set_lora(0, [None, lab.pair(3, 2, 2), None])
    expect(layer.lora_a[0, [0, 2]].any().item(), False, at="A of slices 0 and 2")
    expect(layer.lora_b[0, :, [0, 1, 2, 3, 6, 7]].any().item(), False, at="B of slices 0 and 2")
    expect(layer.lora_b[0, :, 4:6].all().item(), True, at="B of slice 1 is there")


def test_11_3_an_empty_slot(lab: Any) -> None:
    """Reset: both tensors of the slot are zero."""
    layer = lab.make_layer()
    layer.reset_lora(1)
    expect(bool(layer.lora_a[1].any() or layer.lora_b[1].any()), False, at="slot 1 after a reset")


def test_11_3_the_tensors_stay_where_they_are(lab: Any) -> None:
    """Slots are written in place: recorded graphs read their addresses."""
    layer = lab.make_layer()
    before = layer.lora_a.data_ptr(), layer.lora_b.data_ptr()
    layer.set_lora(0, [lab.pair(1, 2, 4), None, None])
    layer.reset_lora(0)
    expect((layer.lora_a.data_ptr(), layer.lora_b.data_ptr()), before, at="addresses")


def test_11_3_the_pair_stays_as_it_is(lab: Any) -> None:
    """The adapter lies in host memory and is copied again after an eviction."""
    layer, pair = lab.make_layer([4]), lab.pair(2, 2, 4)
    a, b = pair.a.clone(), pair.b.clone()
    layer.set_lora(0, [pair])
    layer.reset_lora(0)
    layer.set_lora(1, [pair])
    expect(bool(torch.equal(pair.a, a) and torch.equal(pair.b, b)), True, at="the pair")
    expect(layer.lora_b[1, :2].tolist(), b.T.tolist(), at="B in slot 1, the second time")
