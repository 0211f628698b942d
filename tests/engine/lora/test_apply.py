"""The mapping of a step, and every way of adding adapters, against one product a row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mini_vllm.lora.checkpoint import LoRAPair
from mini_vllm.lora.layers import LinearLoRA
from mini_vllm.lora.mapping import LoRAKernelMeta
from mini_vllm.lora.ops import apply_dense, apply_grouped

CPU = torch.device("cpu")


def make_meta(max_loras: int, slots: list[int], room: int = 0) -> LoRAKernelMeta:
    meta = LoRAKernelMeta(max_loras, len(slots) + room, CPU)
    meta.update(np.array(slots, dtype=np.int32))
    return meta


def test_the_picture_of_the_module():
    meta = make_meta(2, [0, 0, -1, 1, 1, 1, -1, 0], room=2)
    assert meta.token_lora_mapping.tolist() == [0, 0, -1, 1, 1, 1, -1, 0, -1, -1]
    assert meta.token_indices_sorted_by_lora_ids.tolist()[:8] == [2, 6, 0, 1, 7, 3, 4, 5]
    assert meta.active_lora_ids.tolist() == [-1, 0, 1]
    assert meta.num_tokens_per_lora.tolist() == [2, 3, 3]
    assert meta.lora_token_start_loc.tolist() == [0, 2, 5, 8]
    assert not meta.no_lora


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(-1, 3), min_size=1, max_size=12), min_size=1, max_size=5))
def test_steps_leave_nothing_behind(steps: list[list[int]]):
    """After any steps the tensors are those of a fresh mapping, at old addresses (H10, H11)."""
    meta = LoRAKernelMeta(4, 12, CPU)
    names = [name for name, value in vars(meta).items() if isinstance(value, Tensor)]
    names = [name for name in names if name != "foreign"]
    addresses = [getattr(meta, name).data_ptr() for name in names]
    for slots in steps:
        meta.update(np.array(slots, dtype=np.int32))
        fresh = make_meta(4, slots, room=12 - len(slots))
        for name in names:
            if name != "token_indices_sorted_by_lora_ids":
                assert getattr(meta, name).tolist() == getattr(fresh, name).tolist(), name
        ids, starts = meta.active_lora_ids.tolist(), meta.lora_token_start_loc.tolist()
        order = meta.token_indices_sorted_by_lora_ids.tolist()
        for index, count in enumerate(meta.num_tokens_per_lora.tolist()):
            segment = order[starts[index] : starts[index] + count]
            expected = [t for t, slot in enumerate(slots) if slot == ids[index] and count]
            assert segment == expected
        assert meta.no_lora == all(slot < 0 for slot in slots)
    assert addresses == [getattr(meta, name).data_ptr() for name in names]


class Problem:
    """A Linear with slots that random adapters have filled, and some rows."""

    def __init__(self, seed: int, slots: list[int], widths: list[int], dtype=torch.float64):
        self.draw = torch.Generator().manual_seed(seed)
        self.max_rank, self.in_size, self.num_slots = 6, 10, 4
        self.slots, self.dtype = slots, dtype
        self.meta = LoRAKernelMeta(self.num_slots, max(len(slots), 1), CPU)
        self.layer = LinearLoRA(
            self.in_size, widths, self.num_slots, self.max_rank, self.meta, dtype, CPU
        )
        self.pairs: list[list[LoRAPair | None]] = []
        for slot in range(self.num_slots):
            self.layer.set_lora(slot, self.random_pairs(widths, self.max_rank))  # to be overwritten
            self.pairs.append(self.random_pairs(widths, 1 + slot, lacking=slot % len(widths)))
            self.layer.set_lora(slot, self.pairs[slot])
        self.meta.update(np.array(slots, dtype=np.int32))
        self.x = self.normal(len(slots), self.in_size)
        self.y = self.normal(len(slots), sum(widths))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.draw, dtype=torch.float64).to(self.dtype)

    def random_pairs(self, widths, rank, lacking=None):
        return [
            None
            if len(widths) > 1 and index == lacking
            else LoRAPair(self.normal(rank, self.in_size), self.normal(width, rank))
            for index, width in enumerate(widths)
        ]

    def expected(self) -> Tensor:
        rows = []
        for x, y, slot in zip(self.x.double(), self.y, self.slots, strict=True):
            parts = y.double().split([c.stop - c.start for c in self.layer.columns])
            if slot >= 0:
                parts = [
                    part if pair is None else part + pair.b.double() @ (pair.a.double() @ x)
                    for part, pair in zip(parts, self.pairs[slot], strict=True)
                ]
            rows.append(torch.cat(list(parts)))
        return torch.stack(rows)


MAPPINGS = st.lists(st.integers(-1, 3), min_size=1, max_size=14)
WIDTHS = st.sampled_from([[7], [8, 4, 4], [5, 5], [3, 1]])


@settings(max_examples=80)
@given(st.integers(0, 99), MAPPINGS, WIDTHS, st.sampled_from(["call", "dense", "grouped"]))
def test_each_row_gets_its_own_adapter(seed: int, slots: list[int], widths: list[int], way: str):
    problem = Problem(seed, slots, widths)
    layer, meta, y = problem.layer, problem.meta, problem.y.clone()
    if way == "call":
        assert layer(problem.x, y) is y
    elif way == "grouped":
        apply_grouped(problem.x, y, layer.lora_a, layer.lora_b, layer.columns, meta.groups)
    elif not meta.no_lora:
        a, b = layer.lora_a[meta.slots], layer.lora_b[meta.slots]
        apply_dense(problem.x, y, a, b, layer.columns, meta.foreign)
    torch.testing.assert_close(y, problem.expected())
    base = [i for i, slot in enumerate(slots) if slot < 0]
    assert torch.equal(y[base], problem.y[base])  # to the bit


def test_long_prompts_take_the_grouped_way():
    slots = [1] * 70 + [-1] * 3 + [3] * 40
    problem = Problem(3, slots, [8, 4, 4])
    y = problem.layer(problem.x, problem.y.clone())
    torch.testing.assert_close(y, problem.expected())


def test_a_tenant_cannot_spoil_another():
    """Numbers so large that they overflow stay in the rows of their own adapter."""
    problem = Problem(0, [0, 1, -1], [7], torch.float32)
    problem.layer.lora_a[1].fill_(3e38)
    y = problem.layer(problem.x, problem.y.clone())
    assert y[0].isfinite().all() and y[2].isfinite().all() and not y[1].isfinite().all()
    problem.meta.update(np.array([0, 0, -1], dtype=np.int32))
    y = problem.layer(problem.x, problem.y.clone())
    assert y.isfinite().all()


@pytest.mark.parametrize("which", ["lora_a", "lora_b"])
@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_tenant_with_infinite_weights_cannot_either(which: str, number: float):
    problem = Problem(0, [0, 1, -1], [7], torch.float32)
    getattr(problem.layer, which)[1, ..., 0] = number
    y = problem.layer(problem.x, problem.y.clone())
    assert y[0].isfinite().all() and y[2].isfinite().all() and not y[1].isfinite().all()


def test_the_output_may_be_a_slice():
    problem = Problem(5, [0, 2, -1, 2], [8, 4, 4])
    wide = torch.zeros(4, 40, dtype=torch.float64)
    wide[:, 10:26] = problem.y
    problem.layer(problem.x, wide[:, 10:26])
    torch.testing.assert_close(wide[:, 10:26], problem.expected())
    assert not wide[:, :10].any() and not wide[:, 26:].any()


def test_a_slot_forgets():
    """A smaller rank, a missing slice and an empty slot leave nothing of the adapter before."""
    problem = Problem(1, [0] * 3, [5, 5])
    layer = problem.layer
    layer.set_lora(0, [None, LoRAPair(problem.normal(1, 10), problem.normal(5, 1))])
    assert not layer.lora_a[0, 0].any() and not layer.lora_a[0, 1, 1:].any()
    assert not layer.lora_b[0, 1:].any() and not layer.lora_b[0, :, :5].any()
    assert layer.lora_a[0, 1, 0].all() and layer.lora_a[1].any()
    layer.reset_lora(0)
    assert not layer.lora_a[0].any() and not layer.lora_b[0].any() and layer.lora_b[1].any()
    assert layer.num_bytes == 8 * (4 * 2 * 6 * 10 + 4 * 6 * 10)
