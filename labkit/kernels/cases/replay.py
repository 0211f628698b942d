"""Cases for the inputs of a recorded decode step: rows of padding, rows and columns behind them.

No tensor holds floating-point numbers, so the dtype of a case changes nothing here. Nothing static
may be read, and only the rows of the bucket may be written, of the table only the step's part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.cases.draw import Case, Draw, Setup, far_apart
from labkit.kernels.cases.mixed import mixed
from labkit.kernels.cases.rules import CaseRules, TensorRule

TABLES = ("block_table", "static_block_table")


def replay(
    rows: int | None,
    width: int,
    padding: int = 0,
    more_rows: int = 2,
    more_columns: int = 3,
    tokens: bool = True,
    slices: Collection[str] = TABLES,
    far: str = "",
) -> Callable[[Draw, torch.dtype], Setup]:
    """A step of `rows` requests (None: a prime number) with tables of `width` blocks.

    Args:
        padding: rows of the bucket behind them.
        more_rows, more_columns: of the static tensors, which must stay as they are.
        tokens: ids and positions are copied, too.
        slices: which tables are slices of wider ones.
        far: the table whose rows lie 2^30 elements apart.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        num_reqs = draw.prime() if rows is None else rows
        bucket = num_reqs + padding
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            ("input_ids", "positions", "slot_mapping", "seq_lens"), (num_reqs,)
        )
        shapes["block_table"] = (num_reqs, width)
        problem: dict[str, Any] = {"bucket": bucket}
        rules = {}
        row = torch.arange(bucket + more_rows)
        column = torch.arange(width + more_columns)
        for name, shape in shapes.items():
            static = (len(row), len(column)) if len(shape) == 2 else (len(row),)
            is_long = name in ("input_ids", "positions", "slot_mapping")
            problem[name], problem[f"static_{name}"] = (
                _integers(draw, size, is_long) for size in (shape, static)
            )
            written = row < (bucket if name in ("slot_mapping", "seq_lens") else num_reqs)
            axes: tuple[str, ...] = ("row",)
            if name == "block_table":
                written, axes = written[:, None] & (column < width), ("row", "column")
            if name in ("input_ids", "positions") and not tokens:
                problem[name], written = None, torch.zeros_like(written)
            rules[f"static_{name}"] = TensorRule(
                readable=torch.zeros_like(written), writable=written, required=written, axes=axes,
                why="what lies there is of an earlier step",
            )  # fmt: skip
        problem["slot_mapping"][-1] = -1  # of a request it is copied, as any other
        for name in slices:
            problem[name] = _inside_wider(problem[name])
        if far:
            problem[far] = far_apart(problem[far])
        return problem, CaseRules(rules)

    return make


def _integers(draw: Draw, shape: tuple[int, ...], is_long: bool) -> Tensor:
    """Numbers of int64 or int32 that no floating-point number holds to the last bit."""
    if is_long:
        return (draw.normal(*shape).double() * 2**60).long() + 1
    return (draw.normal(*shape).double() * 2**28).int().abs() + 1


def _inside_wider(table: Tensor) -> Tensor:
    wide = torch.full((len(table), table.shape[1] + 5), -7, dtype=table.dtype)
    part = wide[:, 2 : 2 + table.shape[1]]
    return part.copy_(table)


DECODE_INPUTS = (
    Case("one", "one request, a block, no padding", "float32", replay(1, 1, slices=())),
    Case("padding", "3 requests in a bucket of 8", "float16", replay(3, 5, padding=5)),
    Case("full", "a full bucket, and the largest", "bfloat16", replay(4, 7, more_rows=0)),
    Case("prime", "rows and columns of odd numbers", "float32", replay(None, 37, padding=2)),
    Case("whole", "a table as wide as the static one", "float16",
         replay(3, 64, padding=1, more_columns=0, slices=())),
    Case("narrow", "a table of one column in one of 600", "bfloat16",
         replay(5, 1, padding=3, more_columns=599)),
    Case("group", "a group's: no ids and no positions", "float32",
         replay(5, 9, padding=3, tokens=False)),
    Case("over", "1,025 columns: one more than a tile", "float16", replay(2, 1025, padding=2)),
    Case("long", "5,000 columns", "bfloat16", replay(3, 5000, padding=1)),
    Case("many", "700 requests in a bucket of 720", "float32", replay(700, 3, padding=20)),
    Case("far", "static rows 2^30 elements apart", "float16",
         replay(6, 4, padding=1, far="static_block_table")),
    Case("far-step", "the step's rows 2^30 elements apart", "bfloat16",
         replay(6, 4, padding=1, far="block_table")),
    Case("traffic", "24 requests in a bucket of 32, tables of 100", "float32",
         replay(24, 100, padding=8), graded=True),
    *mixed(
        lambda rows, **others: replay(rows[0], padding=rows[1], **others),
        rows={"one request": (1, 0), "one request in a bucket of 12": (1, 11),
              "16 requests": (16, 0), "5 requests in a bucket of 6": (5, 1)},
        width={"one block": 1, "48 blocks": 48, "1,100 blocks": 1100},
        tokens={"": True, "without tokens": False},
        slices={"slices": TABLES, "contiguous": (), "the static table is a slice": TABLES[1:]},
    ),
)  # fmt: skip

CASES = {"decode_inputs": DECODE_INPUTS}
