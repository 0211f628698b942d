"""The tensors of one problem, element by element: where they are, what may be done, what was done.

Each tensor gets a region of virtual addresses of its own, 2^48 bytes apart, so that running off one
tensor never lands in another. Two tensors that share memory (a slice of keys and one of values)
have two regions and one record of who touched what.

    address   region of query    region of key_cache       2^48 bytes each
              |#####             |############             # = the tensor; the rest is out of bounds
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.kernels.cases.rules import CaseRules, TensorRule
from mini_vllm.kernels.launch import KernelSpec

REGION_BITS = 48
PAGE_BITS = 16
DENSE = 1 << 24  # elements; larger storages keep records only of the pages that are touched
RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
LANE_RECORDS = ("write_place", "write_stretch", "read_place", "read_stretch")
SEVERAL = -1  # more than one lane


class Mask:
    """Flags of a tensor's elements, asked for by their offset in memory from its first.

    One flag stands for `inner` neighbours, and all flags for each of `repeats` equal parts, so that
    the flags of a huge cache stay small. Between rows that lie apart there are no flags, so the
    gaps may be huge as well.

    Attributes:
        axes: of a tensor with gaps, (size, stride, elements to the next index in row-major order),
            the longest stride first; () without gaps.
    """

    def __init__(
        self,
        bits: np.ndarray,
        inner: int = 1,
        axes: tuple[tuple[int, int, int], ...] = (),
        repeats: int = 1,
    ) -> None:
        self.bits, self.inner, self.axes, self.repeats = bits, inner, axes, repeats

    def __getitem__(self, offsets: np.ndarray) -> np.ndarray:
        if not self.axes:
            places = offsets if self.inner == 1 else offsets // self.inner
            return self.bits[places if self.repeats == 1 else places % len(self.bits)]
        number, rest, inside = np.zeros_like(offsets), offsets, np.ones(offsets.shape, bool)
        for size, stride, weight in self.axes:
            index, rest = np.divmod(rest, stride)
            inside &= index < size
            number += index * weight
        inside &= rest == 0
        inside[inside] = self.bits[number[inside]]
        return inside

    def offsets(self) -> np.ndarray:
        """All offsets whose flag is set, ascending."""
        found = np.flatnonzero(self.bits)
        if self.repeats > 1:
            begins = np.arange(self.repeats) * len(self.bits)
            found = (begins[:, None] + found).ravel()
        if self.axes:
            parts = [found // weight % size * stride for size, stride, weight in self.axes]
            return np.sort(np.sum(parts, axis=0))
        if self.inner == 1:
            return found
        return (found[:, None] * self.inner + np.arange(self.inner)).ravel()

    @classmethod
    def of(cls, tensor: Tensor, flags: Tensor | bool) -> Mask:
        """The mask of a tensor from flags that broadcast to its shape; gaps are not set."""
        if isinstance(flags, bool):
            flags = torch.tensor(flags)
        flags = flags.reshape((1,) * (tensor.dim() - flags.dim()) + tuple(flags.shape))
        if tensor.is_contiguous():
            depth = max((i + 1 for i, size in enumerate(flags.shape) if size != 1), default=0)
            first = next((i for i, size in enumerate(flags.shape) if size != 1), 0)
            inner = int(np.prod(tensor.shape[depth:], dtype=np.int64))
            repeats = int(np.prod(tensor.shape[:first], dtype=np.int64))
            outer = flags.reshape(flags.shape[first:depth]).expand(tensor.shape[first:depth])
            return cls(outer.flatten().numpy(), max(inner, 1), repeats=repeats)
        weights = torch.empty(tensor.shape, device="meta").stride()
        axes = zip(tensor.shape, tensor.stride(), weights, strict=True)
        apart = sorted((axis for axis in axes if axis[0] > 1), key=lambda axis: -axis[1])
        return cls(flags.expand(tensor.shape).flatten().numpy(), axes=tuple(apart))


def span_of(tensor: Tensor) -> int:
    """Elements from the first to behind the last, gaps included."""
    if tensor.numel() == 0:
        return 0
    reach = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in reach)


class Storage:
    """One piece of memory, and the last that programs did to each element.

    Programs are numbered through all launches, so a number below the first of a launch means: by an
    earlier launch. -1 = never. Of memory that may be written there also is which lane did it last
    (`Monitor.places`), and in which stretch of its program between two barriers; 0 = never.
    """

    write_place: np.ndarray
    write_stretch: np.ndarray
    read_place: np.ndarray
    read_stretch: np.ndarray

    def __init__(self, tensor: Tensor) -> None:
        self.itemsize = tensor.itemsize
        memory = tensor.untyped_storage()
        size = memory.nbytes() // self.itemsize
        flat = torch.empty(0, dtype=tensor.dtype).set_(memory, 0, (size,), (1,))
        raw = flat.view(RAW[self.itemsize]).numpy()
        self.data = raw.view(f"u{self.itemsize}")
        self.writable = False  # through any of its tensors
        self.written = False  # by any program so far
        self._pages = np.full((size >> PAGE_BITS) + 1, -1) if size > DENSE else None
        self._room = size if self._pages is None else 0
        records = self._room
        self.first_reader = np.full(records, -1, np.int32)
        self.last_reader = np.full(records, -1, np.int32)
        self.first_writer = np.full(records, -1, np.int32)
        self.last_writer = np.full(records, -1, np.int32)
        self.atomic = np.zeros(records, bool)
        self.lane = np.zeros(records, np.int32)
        for name in LANE_RECORDS:
            setattr(self, name, np.zeros(records, np.int32))

    def records(self, elements: np.ndarray) -> np.ndarray:
        """Where the records of these elements are; makes room for new ones."""
        if self._pages is None:
            return elements
        pages = elements >> PAGE_BITS
        for page in np.unique(pages[self._pages[pages] < 0]):
            self._pages[page] = self._room >> PAGE_BITS
            self._room += 1 << PAGE_BITS
        self._grow()
        return (self._pages[pages] << PAGE_BITS) + (elements & ((1 << PAGE_BITS) - 1))

    def _grow(self) -> None:
        missing = self._room - len(self.lane)
        if missing:
            for name in ("first_reader", "last_reader", "first_writer", "last_writer"):
                new = np.full(missing, -1, np.int32)
                setattr(self, name, np.concatenate([getattr(self, name), new]))
            self.atomic = np.concatenate([self.atomic, np.zeros(missing, bool)])
            for name in ("lane", *LANE_RECORDS):
                new = np.zeros(missing, np.int32)
                setattr(self, name, np.concatenate([getattr(self, name), new]))

    def first_lanes(self, records: np.ndarray) -> np.ndarray:
        """For each lane whether it is the one that stands for its element."""
        lanes = np.arange(len(records), dtype=np.int32)
        self.lane[records] = lanes
        return self.lane[records] == lanes


@dataclass(frozen=True)
class Region:
    """One tensor as kernels see it.

    Attributes:
        start: its first element, in the storage.
        inside: its elements, if there are gaps between them.
        readable: None = all.
        writable: None = all.
        required: what must be written.
    """

    name: str
    number: int
    tensor: Tensor
    storage: Storage
    start: int
    span: int
    is_output: bool
    inside: Mask | None
    readable: Mask | None
    writable: Mask | None
    required: Mask | None
    rule: TensorRule

    @property
    def address(self) -> int:
        """Virtual address of the first element; aligned to 16 bytes as the real one is."""
        return (self.number + 1 << REGION_BITS) + self.tensor.data_ptr() % 16

    def index(self, offset: int) -> tuple[int, ...]:
        """The index of the element at an offset that is inside."""
        rest, place = offset, [0] * self.tensor.dim()
        strides = self.tensor.stride()
        for axis in sorted(range(len(strides)), key=lambda axis: -strides[axis]):
            if self.tensor.shape[axis] > 1:
                place[axis], rest = divmod(rest, strides[axis])
        return tuple(place)

    def place(self, offset: int) -> str:
        """`key_cache[block 2, offset 5, head 0, dim 0]`."""
        index = self.index(offset)
        names = self.rule.axes or ("",) * len(index)
        words = ", ".join(f"{name} {i}".strip() for name, i in zip(names, index, strict=True))
        return f"{self.name}[{words}]" if words else self.name


class Memory:
    """All tensors of a problem."""

    def __init__(self, problem: Mapping[str, Any], spec: KernelSpec, rules: CaseRules) -> None:
        self._storages: dict[int, Storage] = {}
        self._by_key: dict[Any, Region] = {}
        self.regions: list[Region] = []
        for name, value in problem.items():
            if isinstance(value, Tensor):
                role = "out" if name in spec.outputs else "in"
                role = "update" if name in spec.updates else role
                self._add(name, value, role, rules.rule(name))

    def __iter__(self) -> Iterator[Region]:
        return iter(self.regions)

    @property
    def storages(self) -> list[Storage]:
        return list(self._storages.values())

    def of(self, tensor: Tensor, parameter: str) -> Region:
        """The region of a tensor that a launch passes; without a name in the problem, read only."""
        region = self._by_key.get(_key(tensor))
        if region is None:
            region = self._add(parameter.removesuffix("_ptr"), tensor, "in", TensorRule())
        return region

    def _add(self, name: str, tensor: Tensor, role: str, rule: TensorRule) -> Region:
        memory = tensor.untyped_storage().data_ptr() or -len(self.regions) - 1
        if memory not in self._storages:
            self._storages[memory] = Storage(tensor)
        storage = self._storages[memory]
        storage.writable |= role != "in"
        if storage.itemsize != tensor.itemsize:
            raise ValueError(f"{name} shares memory with a tensor of another element size")

        def mask(flags: Tensor | None, default: bool) -> Mask | None:
            if flags is None and default:
                return None
            return Mask.of(tensor, False if flags is None else flags)

        must = True if role == "out" and rule.required is None else rule.required
        region = Region(
            name=name,
            number=len(self.regions),
            tensor=tensor,
            storage=storage,
            start=tensor.storage_offset(),
            span=span_of(tensor),
            is_output=role == "out",
            inside=None if tensor.is_contiguous() else Mask.of(tensor, True),
            readable=mask(rule.readable, default=role != "out"),
            writable=mask(rule.writable, default=role != "in"),
            required=None if must is None else Mask.of(tensor, must),
            rule=rule,
        )
        self.regions.append(region)
        self._by_key[_key(tensor)] = region
        return region


def _key(tensor: Tensor) -> tuple[Any, ...]:
    """What makes two tensors the same to a kernel."""
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
