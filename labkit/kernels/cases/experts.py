"""Cases for the products of experts: tiles not full, experts without rows, rows of several.

An expert that no pair uses is NaN, and so is what an idle tile lists an impossible number: who
reads either is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.cases.draw import (
    VAST,
    Case,
    Draw,
    Setup,
    far_apart,
    inside_wider,
    lazy_zeros,
    unfilled,
)
from labkit.kernels.cases.mixed import mixed
from labkit.kernels.cases.rules import CaseRules, TensorRule

IMPOSSIBLE_PAIR = -(2**31)
UNUSED = "no pair uses this expert"
IDLE = "this tile is idle"
AXES = {
    "x": ("row", "feature"),
    "weight": ("expert", "column", "feature"),
    "sorted_ids": ("place",),
    "expert_ids": ("tile",),
    "output": ("pair", "column"),
}


def lists(
    draw: Draw, counts: Sequence[int], row_tile: int, idle: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs in any order, of which `counts[e]` are of expert e: their experts `[P]`, and the lists
    of a kernel with tiles of `row_tile` rows, behind which `idle` are idle."""
    experts = torch.tensor(draw.order([e for e, n in enumerate(counts) for _ in range(n)]))
    places, tiles = [], []
    for expert in experts.unique().tolist():
        own = (experts == expert).nonzero().flatten().tolist()
        padding = -len(own) % row_tile
        places += own + [len(experts)] * padding
        tiles += [expert] * ((len(own) + padding) // row_tile)
    places += [IMPOSSIBLE_PAIR] * (idle * row_tile)
    tiles += [-1] * idle
    return experts, torch.tensor(places).int(), torch.tensor(tiles).int()


def grouped(
    counts: Sequence[int],
    columns: int,
    features: int,
    top_k: int = 1,
    row_tile: int = 16,
    idle: int = 1,
    strided: bool = True,
    far: bool = False,
    far_experts: bool = False,
    nan: bool = False,
    size: float = 1.0,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`counts[e]` pairs of expert e, `top_k` of each row of x; their sum is a multiple of it.

    `nan`: a number of x is NaN, and one of the last expert's weight. `size` multiplies weights; x
    is divided by its square. `far_experts`: those used lie behind the 2^32nd number.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        first = 2**32 // (columns * features) + 1 if far_experts else 0
        experts, sorted_ids, expert_ids = lists(draw, counts, row_tile, idle)
        expert_ids = torch.where(expert_ids >= 0, expert_ids + first, expert_ids)
        used = [first + e for e, n in enumerate(counts) if n]
        count = first + len(counts) + 1
        make_weight = lazy_zeros if far_experts else unfilled
        weight = make_weight(count, columns, features, dtype=dtype)
        for expert in used:
            weight[expert] = draw.normal(columns, features, dtype=dtype) * size
        x = draw.normal(len(experts) // top_k, features, dtype=dtype) / size**2
        if nan:
            x[1, features - 1] = weight[used[-1], 0, 0] = torch.nan
        if strided:
            x = inside_wider(x, 3, 5)
        if far:
            x = far_apart(x)
        problem: dict[str, Any] = dict(
            x=x,
            weight=weight,
            sorted_ids=sorted_ids,
            expert_ids=expert_ids,
            top_k=top_k,
            output=unfilled(len(experts), columns, dtype=dtype),
        )
        return problem, CaseRules(rules_of(problem))

    return make


def rules_of(problem: dict[str, Any]) -> dict[str, TensorRule]:
    """Weights are readable of experts that are used, places of tiles that are not idle."""
    expert_ids, sorted_ids = problem["expert_ids"], problem["sorted_ids"]
    used = torch.zeros(len(problem["weight"]), dtype=torch.bool)
    used[expert_ids[expert_ids >= 0].long()] = True
    listed = (expert_ids >= 0).repeat_interleave(len(sorted_ids) // len(expert_ids))
    rules = {name: TensorRule(axes=axes) for name, axes in AXES.items()}
    rules["weight"] = TensorRule(used.view(-1, 1, 1), axes=AXES["weight"], why=UNUSED)
    rules["sorted_ids"] = TensorRule(listed, axes=AXES["sorted_ids"], why=IDLE)
    return rules


LONG_TILE = 64
"""Columns of a tile of `long_output`."""


def long_output(draw: Draw, dtype: torch.dtype) -> Setup:
    """More than 2^32 results: so many columns of one expert, of which the first and the last tile
    are computed; of the others everything is 0."""
    pairs, tiles = 65, 2**26 // LONG_TILE + 1
    columns = tiles * LONG_TILE
    mine = torch.zeros(columns, dtype=torch.bool)
    mine[:LONG_TILE] = mine[-LONG_TILE:] = True
    weight = lazy_zeros(1, columns, 3, dtype=dtype)
    weight[0, mine] = draw.normal(2 * LONG_TILE, 3, dtype=dtype)
    _, sorted_ids, expert_ids = lists(draw, [pairs], 16, 0)
    problem: dict[str, Any] = dict(
        x=draw.normal(pairs, 3, dtype=dtype),
        weight=weight,
        sorted_ids=sorted_ids,
        expert_ids=expert_ids,
        top_k=1,
        output=lazy_zeros(pairs, columns, dtype=dtype),
    )
    rules = rules_of(problem)
    rules["weight"] = TensorRule(mine.view(1, -1, 1), axes=AXES["weight"], why=IDLE)
    flags = mine[None]
    rules["output"] = TensorRule(writable=flags, required=flags, axes=AXES["output"])
    return problem, CaseRules(rules, (0, tiles - 1), axis=1, rest_is_idle=True)


COUNTS: dict[str, list[int]] = {
    "an expert of 6 pairs": [0, 6],
    "experts of 6, 0 and 18 pairs": [6, 0, 18],
    "one of 42 pairs": [0, 42, 0],
}

GROUPED_GEMM = (
    Case("one", "one pair, two columns, three features", "float32",
         grouped([1], 2, 3, strided=False, idle=0)),
    Case("tile", "exactly one tile", "float32", grouped([16], 64, 64, idle=0)),
    Case("even", "two pairs of 90 features", "float16", grouped([2], 20, 90, idle=0)),
    Case("over", "one more than a tile in every direction", "float32", grouped([17, 1], 65, 65)),
    Case("segments", "experts of 1, 15, 16 and 17 pairs", "float32",
         grouped([1, 15, 0, 16, 17], 40, 48, idle=2)),
    Case("pairs", "three experts a row", "float16", grouped([4, 0, 9, 2, 3], 33, 70, 3)),
    Case("wide-tile", "tiles of 32 rows", "bfloat16", grouped([5, 40, 3], 50, 100, 2, 32)),
    Case("many-experts", "a pair each for 260 experts", "float32", grouped([1] * 260, 16, 16, 4)),
    Case("many", "600 rows", "float16", grouped([200, 0, 150, 250], 20, 40, idle=3)),
    Case("columns", "1,100 columns", "bfloat16", grouped([2, 3], 1100, 40)),
    Case("long", "1,100 features", "float32", grouped([4, 5], 9, 1100)),
    Case("longer", "20,001 features", "float32", grouped([2, 0, 1], 3, 20_001)),
    Case("many-chosen", "70 experts a row", "float16", grouped([2] * 70, 16, 16, 70)),
    Case("nan", "a number of x is NaN, and one of a weight", "float32",
         grouped([5, 3], 20, 70, nan=True)),
    Case("vast", "rows beyond float16, weights below it", "bfloat16",
         grouped([5, 3], 60, 70, size=1 / VAST)),
    Case("idle", "idle tiles only behind one", "float16", grouped([0, 0, 3], 24, 24, idle=9)),
    Case("far", "rows of x 2^30 elements apart", "float16", grouped([3, 3], 40, 48, far=True)),
    Case("far-experts", "experts behind the 2^32nd number", "bfloat16",
         grouped([2, 0, 3], 512, 512, far_experts=True)),
    Case("long-output", "more than 2^32 results", "float16", long_output),
    Case("traffic", "16 rows of 2 experts each, 128 columns of 512", "bfloat16",
         grouped([16, 0, 16], 128, 512, 2, strided=False, idle=0), graded=True),
    *mixed(
        grouped,
        counts=COUNTS,
        columns={"64 columns": 64, "67 columns": 67, "130 columns": 130},
        features={"64 features": 64, "101 features": 101, "90 features": 90},
        top_k={"one expert a row": 1, "2 experts a row": 2, "3": 3, "6": 6},
        idle={"": 0, "an idle tile": 1},
        strided={"a slice": True, "contiguous": False},
    ),
)  # fmt: skip

CASES = {"grouped_gemm": GROUPED_GEMM}
