"""Run kernels in Triton's interpreter and watch every element they touch.

All memory traffic of the interpreter goes through four methods of its builder. Here they work on
the records of `memory.py` instead of on addresses: nothing a kernel does can crash the process, and
everything it should not do becomes a finding that names line, program, tensor and element. What a
kernel may not write stays as it is; what it may not read is read all the same, or is NaN if there
is nothing to read.

`program.py` knows the program that runs, and `races.py` who meets at an element.
"""

from __future__ import annotations

import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import TensorHandle

from labkit.kernels.cases.rules import CaseRules
from labkit.kernels.watch.extract import Submission
from labkit.kernels.watch.findings import Finding
from labkit.kernels.watch.hooks import MonitoredBuilder
from labkit.kernels.watch.memory import DENSE, REGION_BITS, Memory, Region
from labkit.kernels.watch.observation import Observation
from labkit.kernels.watch.races import Races
from labkit.kernels.watch.shims import forget, interpreting, narrow, numpy_type, widen
from mini_vllm.kernels.launch import KernelSpec, Launch, Problem

HALF_REGION = 1 << (REGION_BITS - 1)
UNDEFINED = 0x7D7D7D7D7D7D7D7D  # an undefined integer: far outside of everything


def run_monitored(
    submission: Submission,
    spec: KernelSpec,
    problem: Problem,
    rules: CaseRules,
    order: str = "natural",
    seed: int = 0,
    poison: float = math.nan,
    patience: int = 1,
) -> Observation:
    """Solve `problem` with the submission's kernels, in place, and report what they did.

    Args:
        order: of a launch's programs, "natural" or "shuffled" (by `seed`).
        poison: what lanes hold that a load masks off without `other`. With NaN, integers hold a
            number beyond every tensor. With a finite number (integers: within ±100) nothing marks
            such a lane; that is for a second run, whose outputs must equal the first's.
        patience: how many times as long as usual a program may go on.

    Raises:
        RuntimeError: Triton was imported without TRITON_INTERPRET=1.
    """
    kernels = submission.module()
    memory = Memory(problem, spec, rules)
    monitor = Monitor(memory, submission.filename, poison, rules, patience)
    kernels.__dict__["range"] = monitor.counted_range
    shuffle = random.Random(seed).shuffle if order == "shuffled" else None
    loops = {"range": monitor.counted_range, "static_range": monitor.unrolled_range}
    with interpreting(MonitoredBuilder, **loops) as builder:
        builder.monitor = monitor
        ended = all(
            monitor.launch(builder, launch, getattr(kernels, launch.kernel), shuffle)
            for launch in spec.plan(**problem)
        )
    forget(kernels)
    if ended:
        monitor.check_coverage()
    outputs = {
        region.name: _output(region, rules)
        for region in monitor.memory
        if region.name in (*spec.outputs, *spec.updates)
    }
    return Observation(tuple(monitor.findings), monitor.traffic, outputs)


def _output(region: Region, rules: CaseRules) -> Tensor:
    """A tensor, or of a huge one, or of one judged by its rows, the required elements."""
    if region.required is None or (rules.rows is None and region.tensor.numel() <= DENSE):
        return region.tensor
    return region.tensor.flatten()[region.required.offsets()]


class Monitor(Races):
    """Runs launches, and does what the interpreter's builder asks for: loads, stores, atomics."""

    # ------------------------------------------------------------ launches
    def launch(
        self, builder: Any, launch: Launch, kernel: Any, shuffle: Callable[[Any], None] | None
    ) -> bool:
        """Run all programs of one launch; False if one of them raised an error."""
        function, arguments = self._prepare(launch, kernel)
        self.kernel = launch.kernel
        x, y, z = (*launch.grid, 1, 1)[:3]
        self.grid = (x, y, z)
        axes: list[Iterable[int]] = [range(x), range(y), range(z)]
        if self.rules.programs is not None:
            axes[self.rules.axis] = self.rules.programs
        programs = list(itertools.product(axes[0], axes[1], axes[2]))
        if shuffle is not None:
            shuffle(programs)
        builder.set_grid_dim(*self.grid)
        try:
            for self.program in programs:
                self.number = self.base + self._linear(self.program)
                self.undefined, self.read_odd, builder.nan_spreads = {}, False, False
                self.accesses = self.steps = 0
                self.barrier()
                builder.set_grid_idx(*self.program)
                function(**arguments)
        except Exception as error:
            self._crash(error)
            return False
        self._end_launch(len(programs))
        return True

    def _prepare(self, launch: Launch, kernel: Any) -> tuple[Any, dict[str, Any]]:
        if not hasattr(kernel, "rewrite"):
            raise RuntimeError("Triton was imported without TRITON_INTERPRET=1")
        function = kernel.rewrite()
        arguments: dict[str, Any] = {
            name: self.rules.constants.get(name, value) for name, value in launch.constexprs.items()
        }
        for name, value in launch.args.items():
            arguments[name] = self._argument(name, value)
        return function, inspect.getcallargs(function, **arguments)

    def _argument(self, name: str, value: Any) -> Any:
        """A runtime argument as the interpreter's tensor of one element."""
        kind = tl.str_to_ty(triton.runtime.jit.mangle_type(value), None)
        if isinstance(value, Tensor):
            data = np.array([self.memory.of(value, name).address], np.uint64)
        else:
            data = np.array([value], numpy_type(kind))
        return tl.tensor(TensorHandle(data, kind), kind)

    def _end_launch(self, num_programs: int) -> None:
        traffic = self.traffic
        traffic.launches += 1
        traffic.programs += num_programs
        for storage in self.memory.storages:
            read = np.count_nonzero(storage.last_reader >= self.base)
            traffic.unique_read += int(read) * storage.itemsize
            if storage.written:
                written = np.count_nonzero(storage.last_writer >= self.base)
                traffic.unique_written += int(written) * storage.itemsize
        self.base += num_programs

    def check_coverage(self) -> None:
        """A finding for each tensor with elements that must be written and are not."""
        for region in self.memory:
            if region.required is None:
                continue
            offsets = region.required.offsets()
            records = region.storage.records(region.start + offsets)
            missing = offsets[region.storage.last_writer[records] < 0]
            if len(missing):
                first = int(missing[0])
                message = (
                    f"{region.place(first)} is never written: {len(missing)} of the "
                    f"{len(offsets)} elements that must be written are not"
                )
                self.findings.add(
                    Finding("coverage", message, self.kernel, None, None, region.name,
                            region.index(first), len(missing))
                )  # fmt: skip

    # ------------------------------------------------------------ loads
    def load(
        self, pointers: np.ndarray, mask: np.ndarray, other: np.ndarray | None, dtype: Any
    ) -> np.ndarray:
        """What `tl.load` returns; `dtype` is Triton's element type."""
        raw = numpy_type(dtype)
        line, active = self.access(mask)
        if other is not None:
            result = np.array(np.broadcast_to(other, pointers.shape), raw)
        else:
            result = np.full(pointers.shape, 0, raw)
            if len(active) < mask.size:
                result.fill(self._undefined(dtype, line))
        if len(active):
            flat = result.reshape(-1)
            addresses = pointers.reshape(-1)
            if len(active) < mask.size:
                addresses = addresses[active]
            places = self.places(pointers.shape, active)
            for lanes, region, offsets in self._resolve(addresses, raw, line, "read"):
                flat[active[lanes]] = self._read(region, offsets, places[lanes], line).view(raw)
            self.read_odd = self.read_odd or _has_odd(flat[active], dtype)
        return result

    def _undefined(self, dtype: Any, line: int) -> Any:
        """The value of an undefined lane; from here on the program is known to have some."""
        self.undefined[line] = not dtype.is_floating()
        if dtype == tl.bfloat16:
            return narrow(np.array(self.poison))
        if dtype.is_floating():
            return self.poison
        bits = dtype.primitive_bitwidth
        value = UNDEFINED >> (64 - bits)
        if not math.isnan(self.poison):
            value = int(min(max(self.poison, -100), 100))
        return np.array(value).astype(numpy_type(dtype))

    def _resolve(
        self, addresses: np.ndarray, raw: Any, line: int, verb: str
    ) -> list[tuple[Any, Region, np.ndarray]]:
        """Lanes by region, with the element offsets of those that are in bounds.

        The others become findings: they read NaN, or write nothing.
        """
        numbers = (addresses + np.uint64(HALF_REGION)) >> np.uint64(REGION_BITS)
        found = []
        same = len(numbers) == 1 or bool((numbers == numbers[0]).all())
        for number in numbers[:1] if same else np.unique(numbers):
            lanes: Any = slice(None) if same else np.flatnonzero(numbers == number)
            position = int(number) - 1
            if not 0 <= position < len(self.memory.regions):
                self.add("oob", f"{verb}s address {int(addresses[0]):#x}, where no tensor is", line)
                continue
            region = self.memory.regions[position]
            if region.storage.itemsize != raw.itemsize:
                size = region.storage.itemsize
                raise TypeError(f"{region.name} has elements of {size} bytes, not {raw.itemsize}")
            offsets = (addresses[lanes] - np.uint64(region.address)).view(np.int64) // raw.itemsize
            good = (offsets >= 0) & (offsets < region.span)
            if region.inside is not None:
                good[good] = region.inside[offsets[good]]
            if not good.all():
                self._out_of_bounds(region, offsets[~good], line, verb)
                lanes = np.flatnonzero(good) if same else lanes[good]
                offsets = offsets[good]
            if len(offsets):
                found.append((lanes, region, offsets))
        return found

    def _out_of_bounds(self, region: Region, offsets: np.ndarray, line: int, verb: str) -> None:
        first, shape = int(offsets[0]), tuple(region.tensor.shape)
        if first < 0:
            place = f"{-first} elements before the start of {region.name} {shape}"
        elif first >= region.span:
            beyond = first - region.span + 1
            place = f"{beyond} element{'s' * (beyond > 1)} behind the end of {region.name} {shape}"
        else:
            place = (
                f"between the rows of {region.name} {shape}, whose strides are "
                f"{region.tensor.stride()}: element {first} of its memory belongs to another tensor"
            )
        lines = [str(number) for number, integers in self.undefined.items() if integers]
        if lines:
            place += (
                f". Line {', '.join(lines)} masks lanes off without `other`: they are undefined"
            )
        self.add("oob", f"{verb}s {place}", line, region, count=len(offsets))

    def _read(
        self, region: Region, offsets: np.ndarray, places: np.ndarray, line: int
    ) -> np.ndarray:
        storage, elements = region.storage, region.start + offsets
        records = storage.records(elements)
        self._check_readable(region, offsets, records, line)
        if storage.written:
            writers = storage.last_writer[records]
            clash = (writers >= self.base) & (writers != self.number)
            if clash.any():
                self._race(region, offsets[clash], writers[clash], line, "reads", "writes")
        if storage.writable:
            self._read_by_lanes(region, offsets, records, places, line)
        num_bytes = int(np.count_nonzero(storage.first_lanes(records))) * storage.itemsize
        _count(self.traffic.read_by_tensor, region.name, num_bytes)
        _count(self.traffic.by_line, line, num_bytes)
        self.traffic.bytes_read += num_bytes
        if storage.writable:
            new = records[storage.last_reader[records] < self.base]
            storage.first_reader[new] = self.number
        storage.last_reader[records] = self.number
        return storage.data[elements]

    def _check_readable(
        self, region: Region, offsets: np.ndarray, records: np.ndarray, line: int,
        verb: str = "reads",
    ) -> None:  # fmt: skip
        """A finding if some elements hold nothing that a kernel may know."""
        if region.readable is None:
            return
        bad = ~region.readable[offsets]
        if region.storage.written:
            bad &= region.storage.last_writer[records] < 0
        if not bad.any():
            return
        first = int(offsets[bad][0])
        kind, why = "stale_read", region.rule.why or "it holds nothing of this problem"
        if region.is_output:
            kind, why = "uninitialised", "no kernel has written it before"
        message = f"{verb} {region.place(first)}: {why}"
        count = int(np.count_nonzero(bad))
        self.add(kind, message, line, region, region.index(first), count)

    # ------------------------------------------------------------ stores
    def store(self, pointers: np.ndarray, values: np.ndarray, mask: np.ndarray, dtype: Any) -> None:
        """What `tl.store` does."""
        line, active = self.access(mask)
        if not len(active):
            return
        raw = numpy_type(dtype)
        addresses = pointers.reshape(-1)[active]
        data = np.array(np.broadcast_to(values, pointers.shape), raw).reshape(-1)[active]
        places = self.places(pointers.shape, active)
        for lanes, region, offsets in self._resolve(addresses, raw, line, "write"):
            kept = self._may_write(region, offsets, line)
            part, offsets = data[lanes][kept], offsets[kept]
            if len(offsets):
                self._write(region, offsets, part, places[lanes][kept], dtype, line)

    def _may_write(self, region: Region, offsets: np.ndarray, line: int) -> Any:
        """Which lanes may write where they want to."""
        if region.writable is None:
            return slice(None)
        kept = region.writable[offsets]
        if not kept.all():
            first = int(offsets[~kept][0])
            message = f"writes {region.place(first)}, which must stay as it is"
            count = int(np.count_nonzero(~kept))
            self.add("input_changed", message, line, region, region.index(first), count)
        return kept

    def _write(
        self, region: Region, offsets: np.ndarray, values: np.ndarray, places: np.ndarray,
        dtype: Any, line: int,
    ) -> None:  # fmt: skip
        storage, elements = region.storage, region.start + offsets
        records = storage.records(elements)
        self._check_undefined(region, offsets, values, dtype, line)
        self._check_order(region, offsets, records, line, atomic=False)
        winners = storage.first_lanes(records)
        bits = values.view(storage.data.dtype)
        changed = bits != storage.data[elements]
        self._write_by_lanes(region, offsets, records, places, changed, line)
        storage.data[elements] = bits
        if not winners.all():
            differ = bits != storage.data[elements]
            if differ.any():
                first = int(offsets[differ][0])
                message = f"writes two different values to {region.place(first)} in one store"
                count = int(np.count_nonzero(differ))
                self.add("duplicate_store", message, line, region, region.index(first), count)
        self._record_write(region, records, int(np.count_nonzero(winners)), line, atomic=False)

    def _check_undefined(
        self, region: Region, offsets: np.ndarray, values: np.ndarray, dtype: Any, line: int
    ) -> None:
        """Undefined lanes are NaN, or a large integer, and must not reach a store."""
        if not self.undefined or self.read_odd or not math.isnan(self.poison):
            return
        if dtype.is_floating():
            bad = np.isnan(widen(values) if dtype == tl.bfloat16 else values)
        else:
            bad = values == np.array(UNDEFINED >> (64 - dtype.primitive_bitwidth)).astype(
                values.dtype
            )
        if bad.any():
            first = int(offsets[bad][0])
            what = "NaN" if dtype.is_floating() else "an undefined number"
            lines = ", ".join(map(str, self.undefined))
            message = (
                f"writes {what} to {region.place(first)}: the lanes that line {lines} masks off "
                "without `other` are undefined, and reach it"
            )
            count = int(np.count_nonzero(bad))
            self.add("undefined_lane", message, line, region, region.index(first), count)

    def _record_write(
        self, region: Region, records: np.ndarray, distinct: int, line: int, atomic: bool
    ) -> None:
        storage = region.storage
        storage.written = True
        fresh = storage.last_writer[records] < self.base
        storage.first_writer[records[fresh]] = self.number
        storage.atomic[records] = atomic & (fresh | storage.atomic[records])
        storage.last_writer[records] = self.number
        num_bytes = distinct * storage.itemsize
        _count(self.traffic.written_by_tensor, region.name, num_bytes)
        _count(self.traffic.by_line, line, num_bytes)
        self.traffic.bytes_written += num_bytes

    # ------------------------------------------------------------ atomics
    def atomic(
        self, pointers: np.ndarray, mask: np.ndarray, dtype: Any,
        update: Callable[[Any, int], Any],
    ) -> np.ndarray:  # fmt: skip
        """Replace each element by `update(old, lane)`, lane after lane; the old values."""
        raw = numpy_type(dtype)
        line, active = self.access(mask)
        result = np.zeros(pointers.size, raw)
        addresses, places = pointers.reshape(-1)[active], self.places(pointers.shape, active)
        groups = self._resolve(addresses, raw, line, "write") if len(active) else []
        for lanes, region, offsets in groups:
            kept = self._may_write(region, offsets, line)
            chosen, offsets = active[lanes][kept], offsets[kept]
            if not len(offsets):
                continue
            storage, elements = region.storage, region.start + offsets
            records = storage.records(elements)
            self._check_readable(region, offsets, records, line, "reads, with an atomic,")
            self._check_order(region, offsets, records, line, atomic=True)
            self._change_by_lanes(region, offsets, records, places[lanes][kept], line)
            distinct = int(np.count_nonzero(storage.first_lanes(records)))
            memory = storage.data.view(raw)
            for lane, element in zip(chosen.tolist(), elements.tolist(), strict=True):
                result[lane] = memory[element]
                memory[element] = update(memory[element], lane)
            self._record_write(region, records, distinct, line, atomic=True)
            self.traffic.bytes_read += distinct * storage.itemsize
            _count(self.traffic.read_by_tensor, region.name, distinct * storage.itemsize)
        return result.reshape(pointers.shape)

    # ------------------------------------------------------------ arithmetic
    def overflow(self, left: np.ndarray, right: np.ndarray, wide: np.ndarray, name: str) -> None:
        """32-bit (or smaller) integers whose exact result `wide` does not fit."""
        if any(self.undefined.values()):
            return  # undefined lanes may wrap around as they like
        lanes = np.broadcast_to(wide != wide.astype(left.dtype), wide.shape)
        first = int(np.flatnonzero(lanes)[0])
        a, b = (int(np.broadcast_to(x, wide.shape).flat[first]) for x in (left, right))
        sign = {"create_add": "+", "create_sub": "-", "create_mul": "x"}[name]
        bits = left.dtype.itemsize * 8
        message = (
            f"computes {a:,} {sign} {b:,}, which does not fit into {bits} bits: convert one of "
            "them with .to(tl.int64) first"
        )
        self.add("overflow", message, self.line(), count=int(np.count_nonzero(lanes)))


def _count(counter: dict[Any, int], key: Any, amount: int) -> None:
    counter[key] = counter.get(key, 0) + amount


def _has_odd(values: np.ndarray, dtype: Any) -> bool:
    """Whether there is a NaN, or infinity, of which arithmetic makes one."""
    if dtype == tl.bfloat16:
        return bool(((values & 0x7FFF) >= 0x7F80).any())
    return bool(values.dtype.kind == "f" and not np.isfinite(values).all())
