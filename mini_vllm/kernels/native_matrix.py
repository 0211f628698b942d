"""A packed weight as `cpu.cpp` knows it: addresses, sizes, and how its numbers are to be read."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

POINTER, SIZE, REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
ROWS = 32
"""Rows of a weight that lie together for `linear`; a weight has a multiple of them."""


class Matrix(ctypes.Structure):
    """A packed weight `[N, K]`, and what belongs to it; `cpu.cpp` has this structure, too.

    The constructors below make the kinds that it supports. All tensors must outlive this.
    Pickled, it is made anew, of the same tensors in their new place.
    """

    made_of: tuple[Callable[..., Matrix], tuple[Any, ...]]
    """A constructor below, and its arguments."""

    _fields_ = [
        *((name, POINTER) for name in ("blocks", "scales", "shifts", "bias")),
        *((name, SIZE) for name in ("rows", "columns", "kind", "group", "middle")),
        ("x_scale", REAL),
    ]
    FLOAT32, BFLOAT16, INT8, GROUPS_OF_4_BITS, GROUPS_OF_8_BITS = range(5)

    @classmethod
    def of_floats(cls, blocks: Tensor) -> Matrix:
        """`blocks` is what :func:`pack` made of a weight."""
        kind = cls.BFLOAT16 if blocks.dtype == torch.bfloat16 else cls.FLOAT32
        rows, columns = len(blocks) * ROWS, blocks[0].numel() // ROWS
        made = cls(blocks.data_ptr(), None, None, None, rows, columns, kind)
        made.made_of = cls.of_floats, (blocks,)
        return made

    @classmethod
    def of_int8(cls, blocks: Tensor, scale: Tensor, columns: int, x_scale: float = 0) -> Matrix:
        """`blocks` is what :func:`pack_int8` made of a weight, whose rows `scale` `[N]` float32
        scales. x is rounded to int8: with the scale of each token, or with `x_scale` for all."""
        rows = len(blocks) * ROWS
        pointers = blocks.data_ptr(), scale.data_ptr(), None, None
        made = cls(*pointers, rows, columns, cls.INT8, columns, 0, x_scale)
        made.made_of = cls.of_int8, (blocks, scale, columns, x_scale)
        return made

    @classmethod
    def of_groups(
        cls, blocks: Tensor, scale: Tensor, shift: Tensor | None = None, middle: int = 0
    ) -> Matrix:
        """The weight (number - middle) * scale + shift.

        `blocks` is what :func:`pack_int4` made of numbers of 4 bits, or :func:`pack` of int8;
        `scale` and `shift` are `[G, N]` float16, of the groups of columns.
        """
        is_int4 = blocks.dtype == torch.int32
        (groups, rows), columns = scale.shape, blocks[0].numel() // ROWS * (8 if is_int4 else 1)
        kind = cls.GROUPS_OF_4_BITS if is_int4 else cls.GROUPS_OF_8_BITS
        pointers = blocks.data_ptr(), scale.data_ptr(), None if shift is None else shift.data_ptr()
        made = cls(*pointers, None, rows, columns, kind, columns // groups, middle)
        made.made_of = cls.of_groups, (blocks, scale, shift, middle)
        return made

    def __reduce__(self) -> tuple[Callable[..., Matrix], tuple[Any, ...]]:
        return self.made_of

    def with_bias(self, bias: Tensor | None) -> Matrix:
        """The same, whose sums begin with `bias` `[N]` float32."""
        if bias is None:
            return self
        if bias.dtype != torch.float32:
            raise TypeError(f"the bias is {bias.dtype}; sums begin with it, so it must be float32")
        copy = Matrix.from_buffer_copy(self)
        copy.bias = bias.data_ptr()
        return copy
