"""Cases for the plain products: sides that end inside a tile, long sums, vast and tiny numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from labkit.kernels.cases.draw import VAST, Case, Draw, Setup, unfilled
from labkit.kernels.cases.mixed import mixed
from labkit.kernels.cases.quantized import at_the_ends, spread_rows
from labkit.kernels.cases.rules import PRODUCT, CaseRules


def dense(
    tokens: int | None,
    rows: int,
    columns: int,
    strided: bool = True,
    far: bool = False,
    spoilt: float | None = None,
    size: float = 1.0,
    **constants: int,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`[tokens, columns]` times `[rows, columns]`; without a number of tokens a prime one.

    `spoilt`: a number of x, and another of the weight, is this one, NaN or infinity. `size`
    multiplies the weight; x is divided by it.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = draw.prime() if tokens is None else tokens
        x = draw.normal(count, columns) / size
        weight = draw.normal(rows, columns) * size / columns**0.5
        x, weight = x.to(dtype), weight.to(dtype)
        if spoilt is not None:
            x[1, columns - 1] = spoilt
            weight[2, 0] = spoilt
        problem = dict(
            x=spread_rows(x, strided, far),
            weight=weight,
            output=unfilled(count, rows, dtype=dtype),
        )
        return problem, CaseRules(PRODUCT, constants=constants)

    return make


GEMM = (
    Case("one", "one token, two rows, three columns", "float32", dense(1, 2, 3, strided=False)),
    Case("tile", "exactly one tile", "float32", dense(16, 64, 64)),
    Case("over", "one more than a tile in every direction", "float32", dense(17, 65, 65)),
    Case("prime", "67 rows of 101", "float16", dense(None, 67, 101)),
    Case("many", "300 tokens", "float16", dense(300, 20, 40)),
    Case("thousands", "4,200 tokens", "float16", dense(4200, 3, 20)),
    Case("rows", "1,100 rows", "bfloat16", dense(2, 1100, 40)),
    Case("narrow", "tiles of 32 columns", "bfloat16", dense(9, 50, 100, COLUMN_TILE=32)),
    Case("nan", "NaN in x and in the weight", "float32", dense(5, 20, 70, spoilt=torch.nan)),
    Case("inf", "infinity in x and in the weight", "float16",
         dense(5, 20, 70, spoilt=torch.inf)),
    Case("vast", "numbers beyond float16, weights below it", "bfloat16",
         dense(5, 60, 70, size=1 / VAST)),
    Case("tiny", "numbers below float16, weights beyond it", "bfloat16",
         dense(5, 60, 70, size=VAST)),
    Case("long", "1,100 columns", "bfloat16", dense(9, 33, 1100)),
    Case("longer", "70,000 columns", "float32", dense(2, 3, 70_000), long=True),
    Case("sliced", "x is a slice of a wider matrix", "float16", dense(None, 40, 70)),
    Case("far", "tokens 2^30 elements apart", "bfloat16", dense(6, 40, 48, far=True)),
    Case("long-output", "more than 2^32 results", "float16",
         at_the_ends(2**32 // 60, dense(73, 60, 20), ("x",), axis=0)),
    Case("long-weight", "a weight of more than 2^32 numbers", "bfloat16",
         at_the_ends(2**22, dense(1, 73, 1024), ("weight",), axis=1)),
    Case("traffic", "16 tokens, 128 rows of 512", "bfloat16", dense(16, 128, 512, strided=False),
         graded=True),
    *mixed(
        dense,
        tokens={"one token": 1, "9 tokens": 9, "70 tokens": 70},
        rows={"64 rows": 64, "67 rows": 67, "130 rows": 130},
        columns={"64 columns": 64, "101 columns": 101, "90 columns": 90},
        strided={"a slice": True, "contiguous": False},
    ),
)  # fmt: skip

GEMV = (
    Case("one", "one token, two rows, three columns", "float32", dense(1, 2, 3, strided=False)),
    Case("one-row", "one row of 64", "float16", dense(3, 1, 64)),
    Case("tile", "exactly one tile", "float32", dense(2, 8, 1024)),
    Case("over", "one more than a tile in every direction", "float32", dense(3, 9, 513)),
    Case("four", "4 tokens, 67 rows of 101", "float16", dense(4, 67, 101)),
    Case("rows", "4,100 rows: tiles of 16", "bfloat16", dense(2, 4100, 40)),
    Case("narrow", "tiles of 32 columns", "bfloat16", dense(4, 50, 100, COLUMN_TILE=32)),
    Case("nan", "NaN in x and in the weight", "float32", dense(2, 20, 70, spoilt=torch.nan)),
    Case("inf", "infinity in x and in the weight", "float16",
         dense(3, 20, 70, spoilt=torch.inf)),
    Case("vast", "numbers beyond float16, weights below it", "bfloat16",
         dense(3, 120, 70, size=1 / VAST)),
    Case("tiny", "numbers below float16, weights beyond it", "bfloat16",
         dense(3, 120, 70, size=VAST)),
    Case("long", "2,100 columns", "bfloat16", dense(4, 133, 2100)),
    Case("long-half", "3,072 columns", "float16", dense(1, 300, 3072)),
    Case("longer", "70,000 columns", "float32", dense(2, 3, 70_000)),
    Case("sliced", "x is a slice of a wider matrix", "float16", dense(3, 90, 70)),
    Case("far", "tokens 2^30 elements apart", "bfloat16", dense(4, 80, 48, far=True)),
    Case("long-weight", "a weight of more than 2^32 numbers", "bfloat16",
         at_the_ends(2**22, dense(1, 25, 1024), ("weight",), axis=1, program=16, grid_axis=0)),
    Case("traffic", "one token, 128 rows of 1024", "bfloat16",
         dense(1, 128, 1024, strided=False), graded=True),
    Case("traffic-4", "4 tokens, 128 rows of 1024", "bfloat16",
         dense(4, 128, 1024, strided=False), graded=True),
    *mixed(
        dense,
        tokens={"one token": 1, "2 tokens": 2, "3 tokens": 3},
        rows={"64 rows": 64, "67 rows": 67, "130 rows": 130, "7 rows": 7, "6 rows": 6,
              "8 rows": 8},
        columns={"64 columns": 64, "101 columns": 101, "90 columns": 90},
        strided={"a slice": True, "contiguous": False},
    ),
)  # fmt: skip

CASES = {"gemm": GEMM, "gemv": GEMV}
