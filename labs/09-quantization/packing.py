"""Small whole numbers for weights, and how several of them share a 32-bit word.

    weight [N, K]        0.31  -0.08 | 0.02  0.05         two groups of two columns a row
    scale  [N, G]        0.044         0.0071             what one step means in each group
    stored [N, K]        15      6   | 11    15           weight = (stored - zero) * scale
    zero   [N, G]         8              8                the stored number that means 0

`stored` is never negative, so that its bits can be shifted; `zero` moves it to where it belongs.
N is a layer's outputs, K its inputs, g the group size and G = K / g.
"""

from __future__ import annotations

import torch
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""AWQ's word holds column AWQ_ORDER[i] of its eight in nibble i."""


def num_groups(columns: int, group_size: int) -> int:
    """Groups of a row. Raises ValueError for a `group_size` that does not divide; -1 is the row."""
    if group_size == -1:
        return 1
    if group_size < 1 or columns % group_size:
        raise ValueError(
            f"group_size {group_size} does not divide the {columns} columns of a row; choose "
            "a divisor, or -1 for one scale a row"
        )
    return columns // group_size


def choose_qparams(
    weight: Tensor, bits: int, group_size: int, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """The scale of each group of `weight` `[N, K]`, and the stored number that means 0.

    Symmetric: the largest magnitude becomes 2^(bits-1) - 1 steps, and zero is in the middle,
    2^(bits-1). Asymmetric: the range from the smallest to the largest number, which always
    contains 0, is cut into 2^bits - 1 steps; zero lies where 0 falls, rounded.

    A group without any number but 0 has scale 1. Weights are measured in float32 or finer,
    whatever their dtype. `weight` stays as it is.

    Returns:
        scale `[N, G]` float32 and zero `[N, G]` int32.
    """
    # TODO 09.1
    raise NotImplementedError(
        "TODO 09.1: write choose_qparams in labs/09-quantization/packing.py"
        " (phase 09, 02-mini-build.md#task-1)"
    )


def quantize(weight: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    """The stored number of each weight: round half to even, add zero, clamp to 0 .. 2^bits - 1.

    `weight` is `[N, K]`, `scale` and `zero` are `[N, G]`; returns `[N, K]` int32. A weight is
    divided by its scale in float32, whatever the dtypes of both, and stays as it is. A product with
    1 / scale is another number.
    """
    # TODO 09.2
    raise NotImplementedError(
        "TODO 09.2: write quantize in labs/09-quantization/packing.py"
        " (phase 09, 02-mini-build.md#task-2)"
    )


def dequantize(stored: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """The weights that stored numbers `[N, K]` mean: `[N, K]`, in the dtype of `scale`."""
    # TODO 09.2
    raise NotImplementedError(
        "TODO 09.2: write dequantize in labs/09-quantization/packing.py"
        " (phase 09, 02-mini-build.md#task-2)"
    )


def pack_int32(stored: Tensor, bits: int, dim: int) -> Tensor:
    """Put 32 / bits neighbours along `dim` into one word, the first into its lowest bits.

        bits 4:  3 1 4 1 5 9 2 6  ->  0x62951413

    A last word that is not full holds zeros above. Returns int32, `dim` shorter.
    """
    # TODO 09.3
    raise NotImplementedError(
        "TODO 09.3: write pack_int32 in labs/09-quantization/packing.py"
        " (phase 09, 02-mini-build.md#task-3)"
    )


def unpack_int32(words: Tensor, bits: int, dim: int, size: int) -> Tensor:
    """The numbers in `words`, undoing `pack_int32`: int32, `size` long along `dim`.

    A word with its highest bit set is negative: shifting it to the right brings in ones.
    """
    # TODO 09.3
    raise NotImplementedError(
        "TODO 09.3: write unpack_int32 in labs/09-quantization/packing.py"
        " (phase 09, 02-mini-build.md#task-3)"
    )


def unpack_awq(words: Tensor) -> Tensor:
    """The 4-bit numbers of an AWQ tensor `[R, N / 8]`: `[R, N]` int32.

    Eight columns share a word, not in their order: nibble i holds column AWQ_ORDER[i].
    """
    # TODO 09.4
    raise NotImplementedError(
        "TODO 09.4: write unpack_awq in labs/09-quantization/packing.py"
        " (phase 09, 02-mini-build.md#task-4)"
    )


def unpack_gptq_zeros(words: Tensor, bits: int, is_v2: bool) -> Tensor:
    """The zeros of a GPTQ tensor `[G, N * bits / 32]`: `[G, N]` int32.

    The first version of the format stores zero - 1, modulo 2^bits; `gptq_v2` stores zero itself.
    """
    # TODO 09.4
    raise NotImplementedError(
        "TODO 09.4: write unpack_gptq_zeros in labs/09-quantization/packing.py"
        " (phase 09, 02-mini-build.md#task-4)"
    )
