"""Triton's interpreter as a GPU would compute: bfloat16, TF32 and NaN made right, and faster.

The stock interpreter (3.6 and 3.7) keeps bfloat16 as its bits in a uint16 and then adds and
multiplies those bits; rounds fp32 to bfloat16 towards zero; ignores that a `tl.dot` of fp32 uses
TF32 unless told otherwise; calls a comparison of floats a float; prepares the whole language
anew at each call of `tl.sum`; reduces and scans with a function of one's own element by element;
counts loops in numbers that have no `.to`; and knows no `x.exp()`, only `tl.exp(x)`. In 3.6 with
numpy 2.4 or later, `range` over a number known only at run time fails.

Importing this module imports Triton, which reads TRITON_INTERPRET then.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _ir

from labkit.kernels.watch import promises

TRITON = os.path.dirname(triton.__file__)
LANGUAGE = os.path.join(TRITON, "language")
STOCK_DTYPE = interpreter._get_np_dtype
CONSTANT_FIRST = (
    "__add__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __lshift__ __rshift__ __and__ __or__"
    " __xor__ __lt__ __le__ __gt__ __ge__ __eq__ __ne__"
).split()
METHODS = "ceil cos erf exp exp2 floor log log2 rsqrt sin sqrt sqrt_rn".split()
KNOWN = (
    tl.standard._argmin_combine_tie_break_left,
    tl.standard._argmax_combine_tie_break_left,
    tl.standard._elementwise_max,
    tl.standard._elementwise_min,
    tl.standard._sum_combine,
    tl.standard._prod_combine,
)
"""What the stock interpreter does for a whole tile at once."""
INTEGER_OPS = {"create_add": np.add, "create_sub": np.subtract, "create_mul": np.multiply}


_numpy_types: dict[str, np.dtype] = {}


def numpy_type(kind: Any) -> np.dtype:
    """The numpy dtype that holds a Triton type; the stock function builds a table at each call."""
    found = _numpy_types.get(kind.name)
    if found is None:
        found = _numpy_types[kind.name] = STOCK_DTYPE(kind)
    return found


def widen(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits (uint16) as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray) -> np.ndarray:
    """float values as bfloat16 bits (uint16), rounded to nearest, ties to even."""
    bits = np.atleast_1d(values.astype(np.float32)).view(np.uint32).reshape(values.shape)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def to_tf32(values: np.ndarray) -> np.ndarray:
    """float32 with the 10 bits of mantissa that a TF32 tensor core keeps."""
    rounded = (values.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


def is_bf16(handle: TensorHandle) -> bool:
    """Whether a handle holds bfloat16 bits."""
    return bool(handle.dtype.scalar == tl.bfloat16 and handle.data.dtype == np.uint16)


def numbers(handle: TensorHandle) -> np.ndarray:
    """A handle's data as numbers."""
    return widen(handle.data) if is_bf16(handle) else handle.data


def _like(data: np.ndarray, dtype: Any) -> TensorHandle:
    """A handle of `dtype`; numbers become bits if it is bfloat16."""
    scalar = dtype.scalar
    if scalar == tl.bfloat16 and data.dtype.kind == "f":
        data = narrow(data)
    return TensorHandle(data, scalar)


class TrueBuilder(InterpreterBuilder):
    """The interpreter's builder with a GPU's arithmetic.

    Attributes:
        nan_spreads: let maxima spread NaN instead of ignoring it, as long as NaN marks a value
            that is undefined.
    """

    nan_spreads = False

    def get_bf16(self, value: float) -> TensorHandle:
        return TensorHandle(narrow(np.array([value], np.float32)), tl.bfloat16)

    def cast_impl(self, src: TensorHandle, dst_type: Any) -> TensorHandle:
        target = dst_type.scalar
        if is_bf16(src) and target == tl.bfloat16:
            return TensorHandle(src.data, target)
        if target == tl.bfloat16:
            return TensorHandle(narrow(src.data.astype(np.float32)), target)
        return TensorHandle(numbers(src).astype(numpy_type(dst_type)), target)

    def create_fp_to_fp(self, src: TensorHandle, dst_type: Any, rounding_mode: Any) -> TensorHandle:
        if rounding_mode in (None, _ir.ROUNDING_MODE.RTNE):
            return self.cast_impl(src, dst_type)
        return super().create_fp_to_fp(src, dst_type, rounding_mode)

    def binary_op(
        self, lhs: TensorHandle, rhs: TensorHandle, op: Callable[..., np.ndarray]
    ) -> TensorHandle:
        output = op(numbers(lhs), numbers(rhs))
        if output.dtype == bool:  # the stock builder calls a comparison of floats a float
            return TensorHandle(output, tl.int1)
        if is_bf16(lhs) or is_bf16(rhs):
            return _like(output, lhs.dtype)
        kind = lhs.dtype.scalar
        wider = output.itemsize * 8 > max(kind.primitive_bitwidth, 8)
        return TensorHandle(output.astype(numpy_type(kind)) if wider else output, kind)

    def unary_op(self, arg: TensorHandle, op: Callable[..., np.ndarray]) -> TensorHandle:
        return _like(op(numbers(arg)), arg.dtype) if is_bf16(arg) else super().unary_op(arg, op)

    def ternary_op(
        self, lhs: TensorHandle, rhs: TensorHandle, other: TensorHandle, op: Any
    ) -> TensorHandle:
        if op is np.clip and is_bf16(other):
            return _like(op(numbers(lhs), numbers(rhs), numbers(other)), other.dtype)
        return super().ternary_op(lhs, rhs, other, op)

    def create_fma(self, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
        return _like(numbers(x) * numbers(y) + numbers(z), z.dtype)

    def create_rsqrt(self, arg: TensorHandle) -> TensorHandle:
        return _like(1 / np.sqrt(numbers(arg)), arg.dtype)

    def create_erf(self, arg: TensorHandle) -> TensorHandle:
        if is_bf16(arg):
            return _like(interpreter.np_erf_fp32(numbers(arg)), arg.dtype)
        return super().create_erf(arg)

    def create_maxnumf(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return self.binary_op(lhs, rhs, np.maximum if self.nan_spreads else np.fmax)

    def create_minnumf(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        return self.binary_op(lhs, rhs, np.minimum if self.nan_spreads else np.fmin)

    def create_assume(self, condition: TensorHandle) -> None:
        if not condition.data.all():
            raise ValueError("tl.assume says what is not so here: a GPU would believe it")

    def create_gather(self, src: TensorHandle, indices: TensorHandle, axis: int) -> TensorHandle:
        size, wrong = src.data.shape[axis], indices.data[indices.data < 0]
        if wrong.size:  # the stock builder counts from the end
            raise IndexError(f"index {wrong[0]} is out of bounds for an axis of {size}")
        return super().create_gather(src, indices, axis)

    def create_dot(
        self,
        a: TensorHandle,
        b: TensorHandle,
        d: TensorHandle,
        input_precision: Any,
        imprecise: int,
    ) -> TensorHandle:
        if a.data.dtype.kind not in "fu" or a.dtype.primitive_bitwidth == 8:
            return super().create_dot(a, b, d, input_precision, imprecise)
        left, right = numbers(a), numbers(b)
        if left.dtype == np.float32 and not is_bf16(a):
            if input_precision == _ir.INPUT_PRECISION.TF32:
                left, right = to_tf32(left), to_tf32(right)
        elif left.dtype == np.float16:
            left, right = left.astype(np.float32), right.astype(np.float32)
        # Products of half-precision numbers are exact in float32, and summed in it.
        return _like(np.matmul(left, right).astype(d.data.dtype) + d.data, d.dtype)


def _widened(tensor: Any) -> Any:
    """A bfloat16 tensor as a float32 one."""
    if tensor.dtype != tl.bfloat16:
        return tensor
    shape = tensor.handle.data.shape
    kind = tl.block_type(tl.float32, list(shape)) if tensor.type.is_block() else tl.float32
    return tl.core.tensor(TensorHandle(widen(tensor.handle.data), tl.float32), kind)


def _narrowed(tensor: Any, dtype: Any) -> Any:
    if dtype != tl.bfloat16 or tensor.dtype != tl.float32:
        return tensor
    shape = list(tensor.handle.data.shape)
    kind = tl.block_type(tl.bfloat16, shape) if tensor.type.is_block() else tl.bfloat16
    return tl.core.tensor(TensorHandle(narrow(tensor.handle.data), tl.bfloat16), kind)


def _combined(self: Any, left: Any, right: Any, kinds: Any) -> list[np.ndarray]:
    """A function of the learner's on two halves of some tiles, given as arrays."""
    words = [self.to_tensor(d, k) for half in (left, right)
             for d, k in zip(half, kinds, strict=True)]  # fmt: skip
    found = self.combine_fn.fn(*words)
    found = found if isinstance(found, tuple) else (found,)
    arrays = [getattr(value, "handle", SimpleNamespace(data=value)).data for value in found]
    return [np.broadcast_to(a, d.shape).astype(d.dtype) for a, d in zip(arrays, left, strict=True)]


def _reduced(self: Any, tiles: tuple[Any, ...]) -> list[Any]:
    """`tl.reduce`: neighbours are joined, then pairs of them, as on a GPU. An axis has a power of
    two of them."""
    kinds, shape = [tile.dtype for tile in tiles], tiles[0].handle.data.shape
    whole = self.axis is None
    data = [t.handle.data.reshape(-1) if whole else t.handle.data for t in tiles]
    axis = 0 if whole else int(self.axis) % len(shape)
    every = (slice(None),) * axis
    while data[0].shape[axis] > 1:
        left, right = ([d[(*every, slice(i, None, 2))] for d in data] for i in (0, 1))
        data = _combined(self, left, right, kinds)
    if self.keep_dims:
        data = [d.reshape((1,) * len(shape)) if whole else d for d in data]
    else:
        data = [d.squeeze(axis) for d in data]
    return [self.to_tensor(d, kind) for d, kind in zip(data, kinds, strict=True)]


def _scanned(self: Any, tiles: tuple[Any, ...]) -> list[Any]:
    """`tl.associative_scan`: each element joins the one 1, 2, 4, … places before it."""
    kinds, data = [tile.dtype for tile in tiles], [tile.handle.data for tile in tiles]
    axis, distance = int(self.axis) % data[0].ndim, 1
    size = data[0].shape[axis]
    place = np.arange(size).reshape(-1, *(1,) * (data[0].ndim - axis - 1))
    data = [np.flip(d, axis) if self.reverse else d for d in data]
    while distance < size:
        before = [np.roll(d, distance, axis) for d in data]
        joined = _combined(self, before, data, kinds)
        data = [np.where(place >= distance, j, d) for j, d in zip(joined, data, strict=True)]
        distance *= 2
    data = [np.flip(d, axis) if self.reverse else d for d in data]
    return [self.to_tensor(d, kind) for d, kind in zip(data, kinds, strict=True)]


def _reduction(stock: Any) -> Any:
    """`apply_impl` of reductions and scans: bfloat16 through float32, and NaN as on a GPU."""

    def apply_impl(self: Any, input: tuple[Any, ...]) -> Any:
        wide = tuple(map(_widened, input))
        extremes = {
            tl.standard._elementwise_max: (np.fmax, np.maximum),
            tl.standard._elementwise_min: (np.fmin, np.minimum),
        }
        pair = extremes.get(self.combine_fn)
        reduces = isinstance(self, interpreter.ReduceOps)
        if pair is not None and reduces:
            ignore, spread = pair
            op = spread if interpreter.interpreter_builder.nan_spreads else ignore
            results = self.min_max(wide[0], val_reduce_op=op.reduce)
        elif self.combine_fn in KNOWN:
            results = stock(self, wide)
        else:
            results = _reduced(self, wide) if reduces else _scanned(self, wide)
        if not isinstance(results, (list, tuple)):
            return _narrowed(results, input[0].dtype)
        return [_narrowed(r, source.dtype) for r, source in zip(results, input, strict=True)]

    return apply_impl


def index(number: int, bounds: tuple[Any, ...]) -> Any:
    """A loop's number as a kernel has it: int64 if one of the bounds is, else int32."""
    kinds = [bound.dtype for bound in bounds if isinstance(bound, tl.tensor)]
    kind = tl.int64 if tl.int64 in kinds or not -(2**31) <= number < 2**31 else tl.int32
    return tl.tensor(TensorHandle(np.array([number], numpy_type(kind)), kind), kind)


def _method(name: str) -> Callable[..., Any]:
    """`x.exp()` for `tl.exp(x)`."""

    def apply(self: Any, **words: Any) -> Any:
        return getattr(tl.math, name)(self, **words)

    return apply


def _truth(tensor: Any) -> bool:
    """What `if` asks of a number; a tile has no answer, though the stock interpreter calls it true.

    Triton's own language asks whether there *is* a mask, or an `other`; the number 0 is one.
    """
    asks = sys._getframe(1).f_code.co_filename
    if asks.startswith(LANGUAGE):
        return True
    if tensor.type.is_block() and not asks.startswith(TRITON):
        shape = [int(size) for size in tensor.shape]
        raise TypeError(
            f"a tile {shape} is neither true nor false: `if`, `while`, `and`, `or`, `max` and `min`"
            " need one number. Choose by element with tl.where(tile, a, b), tl.maximum or a mask,"
            " combine with & and |"
        )
    data = tensor.handle.data
    return bool(data) if data.size == 1 else True


def _constant_first(name: str) -> Callable[[Any, Any], Any]:
    """An operator of a `tl.constexpr` on the left of a tile, which the compiler takes as a number;
    the stock interpreter makes a constant of the result."""
    stock, plain = getattr(tl.constexpr, name), getattr(operator, name)

    def apply(self: Any, other: Any) -> Any:
        return plain(self.value, other) if isinstance(other, tl.tensor) else stock(self, other)

    return apply


def forget(module: ModuleType) -> None:
    """Empty a module of kernels that have run.

    Triton keeps each that it has rewritten for ever, and with it all that its module's names lead
    to: here a monitor, and every tensor of a case.
    """
    rewritten = interpreter.InterpretedFunction.rewritten_fn
    for function in [each for each in rewritten if each.__globals__ is vars(module)]:
        del rewritten[function]
    vars(module).clear()


@contextmanager
def interpreting(
    builder: type[TrueBuilder] = TrueBuilder, **loops: Callable[..., Iterator[Any]]
) -> Iterator[Any]:
    """Let the interpreter use `builder`; gives the one instance that it has.

    The language is prepared once, for all kernels and all that they call. `loops`: what `tl.range`
    and `tl.static_range` are meanwhile, by these names.
    """
    instance = interpreter.interpreter_builder
    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    scope.set_attr(tl.core.tensor, "__index__", lambda self: int(self.handle.data.item()))
    scope.set_attr(tl.core.tensor, "__bool__", _truth)
    for name in CONSTANT_FIRST:
        scope.set_attr(tl.constexpr, name, _constant_first(name))
    for name in METHODS:
        scope.set_attr(tl.core.tensor, name, _method(name))
    for name, loop in loops.items():
        scope.set_attr(tl, name, loop)
    for name in promises.NAMES:
        scope.set_attr(tl, name, promises.held(getattr(tl, name)))
    scope.set_attr(interpreter, "_get_np_dtype", numpy_type)
    scope.set_attr(interpreter, "_patch_lang", lambda fn: interpreter._LangPatchScope())
    for kind in (interpreter.ReduceOps, interpreter.ScanOps):
        scope.set_attr(kind, "apply_impl", _reduction(kind.apply_impl))
    options, stock = instance.options, instance.__class__
    # Its own check of overflows costs a fifth of the time; the monitor has a cheaper one.
    instance.options = dataclasses.replace(options, sanitize_overflow=False)
    instance.__class__ = builder
    try:
        with np.errstate(all="ignore"):
            yield instance
    finally:
        instance.__class__, instance.options = stock, options
        scope.restore()
