"""The places where Triton's interpreter touches memory or computes: each asks the monitor.

The builder is the interpreter's own, with its four ways to memory and its integer arithmetic
replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle, _ir

from labkit.kernels.watch.observation import Traffic
from labkit.kernels.watch.shims import INTEGER_OPS, TrueBuilder, narrow, widen

ATOMICS: dict[Any, Callable[[Any, Any], Any]] = {
    _ir.ATOMIC_OP.ADD: np.add,
    _ir.ATOMIC_OP.FADD: np.add,
    _ir.ATOMIC_OP.MIN: np.minimum,
    _ir.ATOMIC_OP.UMIN: np.minimum,
    _ir.ATOMIC_OP.MAX: np.maximum,
    _ir.ATOMIC_OP.UMAX: np.maximum,
    _ir.ATOMIC_OP.AND: np.bitwise_and,
    _ir.ATOMIC_OP.OR: np.bitwise_or,
    _ir.ATOMIC_OP.XOR: np.bitwise_xor,
    _ir.ATOMIC_OP.XCHG: lambda old, new: new,
}


class Watcher(Protocol):
    """What a builder asks: `labkit.kernels.watch.monitor.Monitor`."""

    undefined: Any
    poison: float
    traffic: Traffic

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any: ...

    def store(self, addresses: Any, values: Any, mask: Any, dtype: Any) -> None: ...

    def atomic(self, addresses: Any, mask: Any, dtype: Any, update: Any) -> Any: ...

    def overflow(self, left: Any, right: Any, wide: Any, name: str) -> None: ...

    def barrier(self) -> None: ...

    def step(self) -> None: ...

    def may_print(self) -> bool: ...


class MonitoredBuilder(TrueBuilder):
    """The interpreter's builder whose memory is the monitor's."""

    monitor: Watcher

    def create_masked_load(
        self, ptrs: TensorHandle, mask: Any, other: TensorHandle | None, *hints: Any
    ) -> TensorHandle:
        dtype = ptrs.get_element_ty()
        flags = np.broadcast_to(np.asarray(mask.data, bool), ptrs.data.shape)
        fill = None if other is None else other.data
        data = self.monitor.load(ptrs.data, flags, fill, dtype)
        self.nan_spreads = bool(self.monitor.undefined) and math.isnan(self.monitor.poison)
        return TensorHandle(data, dtype)

    def create_masked_store(
        self, ptrs: TensorHandle, value: TensorHandle, mask: Any, *hints: Any
    ) -> None:
        flags = np.broadcast_to(np.asarray(mask.data, bool), ptrs.data.shape)
        self.monitor.store(ptrs.data, value.data, flags, ptrs.get_element_ty())

    def create_atomic_rmw(
        self, rmwOp: Any, ptr: TensorHandle, val: TensorHandle, mask: Any, *order: Any
    ) -> TensorHandle:
        dtype, op = ptr.get_element_ty(), ATOMICS[rmwOp]
        values = np.broadcast_to(val.data, ptr.data.shape).reshape(-1)
        if dtype == tl.bfloat16:

            def update(old: Any, lane: int) -> Any:
                return narrow(op(widen(np.array(old)), widen(np.array(values[lane]))))
        else:

            def update(old: Any, lane: int) -> Any:
                return op(old, values[lane])

        flags = np.broadcast_to(np.asarray(mask.data, bool), ptr.data.shape)
        return TensorHandle(self.monitor.atomic(ptr.data, flags, dtype, update), dtype)

    def create_atomic_cas(
        self, ptr: TensorHandle, cmp: TensorHandle, val: TensorHandle, *order: Any
    ) -> TensorHandle:
        dtype = ptr.get_element_ty()
        expected = np.broadcast_to(cmp.data, ptr.data.shape).reshape(-1)
        values = np.broadcast_to(val.data, ptr.data.shape).reshape(-1)

        def update(old: Any, lane: int) -> Any:
            return values[lane] if old == expected[lane] else old

        flags = np.ones(ptr.data.shape, bool)
        return TensorHandle(self.monitor.atomic(ptr.data, flags, dtype, update), dtype)

    def create_barrier(self) -> None:
        self.monitor.barrier()

    def create_print(self, *words: Any) -> None:
        if self.monitor.may_print():
            super().create_print(*words)

    def binary_op(
        self, lhs: TensorHandle, rhs: TensorHandle, op: Callable[..., np.ndarray]
    ) -> TensorHandle:
        self.monitor.step()
        return super().binary_op(lhs, rhs, op)

    def create_dot(self, a: TensorHandle, b: TensorHandle, *rest: Any) -> TensorHandle:
        self.monitor.traffic.dot_flops += 2 * a.data.size * b.data.shape[-1]
        return super().create_dot(a, b, *rest)

    def _integer(self, name: str, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        result = self.binary_op(lhs, rhs, INTEGER_OPS[name])
        left, right = lhs.data, rhs.data
        if left.dtype.kind in "iu" and left.itemsize < 8:
            wide = INTEGER_OPS[name](left.astype(np.int64), right.astype(np.int64))
            if not np.array_equal(wide, result.data):
                self.monitor.overflow(left, right, wide, name)
        return result

    def create_add(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return self._integer("create_add", lhs, rhs)

    def create_sub(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return self._integer("create_sub", lhs, rhs)

    def create_mul(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return self._integer("create_mul", lhs, rhs)
