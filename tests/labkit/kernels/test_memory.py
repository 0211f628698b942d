"""The records of which program touched which element: slices, shared memory, caches of any size."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from labkit.kernels.cases.draw import far_apart
from labkit.kernels.cases.rules import CaseRules, TensorRule
from labkit.kernels.watch.memory import DENSE, PAGE_BITS, Mask, Memory, Region, span_of
from mini_vllm.kernels.launch import KernelSpec, Work

SPEC = KernelSpec(
    name="toy",
    module="none",
    kernels=(),
    plan=lambda **problem: [],
    work=lambda **problem: Work(0, 0, 0),
    outputs=("out",),
    updates=("cache",),
)


def memory_of(rules: dict[str, TensorRule] | None = None, **problem: Tensor) -> Memory:
    return Memory(problem, SPEC, CaseRules(rules or {}))


def region(memory: Memory, name: str) -> Region:
    return next(region for region in memory if region.name == name)


def test_a_mask_keeps_one_flag_for_what_shares_it() -> None:
    cache = torch.zeros(3, 4, 2, 8)
    slots = torch.zeros(3, 4, 1, 1, dtype=torch.bool)
    slots[1, 2] = True
    mask = Mask.of(cache, slots)
    assert (len(mask.bits), mask.inner) == (12, 16)
    assert mask.offsets().tolist() == list(range(6 * 16, 7 * 16))
    assert mask[np.array([95, 96, 111, 112])].tolist() == [False, True, True, False]
    assert Mask.of(cache, True).offsets().tolist() == list(range(3 * 4 * 2 * 8))
    columns = Mask.of(torch.zeros(2, 3), torch.tensor([True, False, True]))
    assert columns.offsets().tolist() == [0, 2, 3, 5]


def test_a_mask_of_a_slice_leaves_its_gaps_out() -> None:
    part = torch.zeros(3, 5)[:, 1:3]
    assert span_of(part) == 12
    assert Mask.of(part, True).offsets().tolist() == [0, 1, 5, 6, 10, 11]
    rows = torch.tensor([[True], [False], [True]])
    assert Mask.of(part, rows).offsets().tolist() == [0, 1, 10, 11]


def test_rows_may_be_as_far_apart_as_memory_reaches() -> None:
    far = far_apart(torch.arange(6.0).view(3, 2))
    mask = Mask.of(far, torch.tensor([[True], [False], [True]]))
    assert len(mask.bits) == 6
    assert mask.offsets().tolist() == [0, 1, 2**31, 2**31 + 1]
    asked = np.array([1, 2, 2**30, 2**31 + 1, 2**31 + 2, 3 * 2**30])
    assert mask[asked].tolist() == [True, False, False, True, False, False]
    assert Mask.of(far, True)[np.array([2**30, 2**30 + 2])].tolist() == [True, False]
    turned = Mask.of(torch.zeros(3, 4).t(), torch.tensor([[True], [True], [False], [False]]))
    assert turned.offsets().tolist() == [0, 1, 4, 5, 8, 9]


def test_slices_of_one_tensor_share_records_but_not_addresses() -> None:
    wide = torch.zeros(2, 8)
    memory = memory_of(query=wide[:, :4], out=wide[:, 4:], cache=torch.zeros(2))
    query, out = region(memory, "query"), region(memory, "out")
    assert query.storage is out.storage and len(memory.storages) == 2
    assert abs(query.address - out.address) >= 1 << 47
    assert (query.start, out.start) == (0, 4)
    assert query.storage.writable, "through `out`"
    assert memory.of(wide[:, :4], "x_ptr") is query
    stranger = memory.of(torch.zeros(3), "lengths_ptr")
    assert stranger.name == "lengths" and stranger.writable is not None
    assert not stranger.writable.bits.any()


def test_an_index_is_named_by_its_axes() -> None:
    rule = TensorRule(axes=("block", "offset"))
    memory = memory_of({"cache": rule}, cache=torch.zeros(3, 4), out=torch.zeros(4, 3).t())
    assert region(memory, "cache").place(6) == "cache[block 1, offset 2]"
    assert region(memory, "out").place(5) == "out[2, 1]"


def test_addresses_are_as_aligned_as_the_tensor() -> None:
    data = torch.zeros(64)
    memory = memory_of(a=data[:16], b=data[17:33])
    assert region(memory, "a").address % 16 == data.data_ptr() % 16
    assert (region(memory, "b").address - region(memory, "a").address) % 16 == 4


def test_a_huge_tensor_has_records_only_where_it_is_touched() -> None:
    size = 2 * DENSE
    flags = torch.zeros(size, dtype=torch.bool)
    memory = memory_of(
        {"cache": TensorRule(required=flags)}, cache=torch.zeros(size, dtype=torch.int8)
    )
    storage = region(memory, "cache").storage
    assert len(storage.lane) == 0
    far = np.array([size - 1, 5, size - 2])
    records = storage.records(far)
    assert len(storage.lane) == 2 << PAGE_BITS
    storage.last_writer[records] = 7
    again = storage.records(np.array([size - 2, size - 3]))
    assert storage.last_writer[again].tolist() == [7, -1]
    assert len(set(records.tolist())) == 3


def test_one_lane_stands_for_each_element() -> None:
    storage = region(memory_of(cache=torch.zeros(8)), "cache").storage
    first = storage.first_lanes(np.array([3, 3, 1, 3]))
    assert first.sum() == 2 and first[2]
