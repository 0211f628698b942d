"""Cases for adapters: segments of all lengths, rows without adapter, slots that must not be read.

A slot that no row uses is NaN: it belongs to another tenant. So are the entries of the step's
lists behind their end impossible numbers.
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

IMPOSSIBLE_ROW = 2**31 - 1
EXPAND_TILE = 128
"""Columns of y in a tile of the launcher's, for small ranks."""
TENANT = "no row uses this slot: it holds another tenant's weights"
BASE = "this row has no adapter"


# ---------------------------------------------------------------- who uses what
def mapping_of(draw: Draw, counts: Sequence[int], base: int) -> Tensor:
    """The slot of each row: `counts[s]` rows use slot s, `base` rows none, in any order."""
    slots = [slot for slot, count in enumerate(counts) for _ in range(count)] + [-1] * base
    return torch.tensor(draw.order(slots), dtype=torch.int64)


def segments(mapping: Tensor, padding: int) -> dict[str, Tensor]:
    """The lists that a step brings: rows sorted by slot, and where each segment begins.

    Behind the last segment stand `padding` more that belong to no request.
    """
    ids, counts = mapping.unique(return_counts=True)
    order = mapping.argsort(stable=True)
    no_adapter = torch.full((padding,), -1)
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    return {
        "order": torch.cat((order, torch.full((3,), IMPOSSIBLE_ROW))).int(),
        "lora_ids": torch.cat((ids, no_adapter)).int(),
        "num_tokens": torch.cat((counts, torch.zeros(padding))).int(),
        "starts": torch.cat((starts, torch.zeros(padding))).int(),
    }


def slots_of(
    draw: Draw, dtype: torch.dtype, used: Sequence[int], shape: Sequence[int], count: int
) -> Tensor:
    """`[count, *shape]`: random numbers in the used slots, NaN in the others.

    More than 2^31 elements are allocated lazily.
    """
    big = count * torch.Size(shape).numel() > 2**31
    make = lazy_zeros if big else unfilled
    slots = make(count, *shape, dtype=dtype)
    for slot in used:
        slots[slot] = draw.normal(*shape, dtype=dtype)
    return slots


def rules_of(mapping: Tensor, num_slots: int, rows: str, weights: str) -> dict[str, TensorRule]:
    """Lists are readable up to the step's end, weights in the slots that are used."""
    used = torch.zeros(num_slots, dtype=torch.bool)
    used[mapping[mapping >= 0]] = True
    count = len(mapping)
    in_order = torch.arange(count + 3) < count
    return {
        "order": TensorRule(readable=in_order, axes=("place",), why="the step has no such row"),
        "lora_ids": TensorRule(axes=("segment",)),
        "num_tokens": TensorRule(axes=("segment",)),
        "starts": TensorRule(axes=("segment",)),
        weights: TensorRule(
            readable=used.view(-1, *[1] * (3 if weights == "lora_a" else 2)),
            axes=("slot", "slice", "rank", "in")
            if weights == "lora_a"
            else ("slot", "rank", "out"),
            why=TENANT,
        ),
    }


def place_far(counts: Sequence[int], row: int) -> list[int]:
    """The same counts for slots whose numbers begin behind the 2^32nd element."""
    return [0] * (2**32 // row) + list(counts)


# ---------------------------------------------------------------- shrink
def many_slices(num_slices: int) -> Callable[[Draw, torch.dtype], Setup]:
    """So many rows, slots and slices, of one number each, that the product of any two counts takes
    more than 32 bits. Three rows at the end have adapters, in the last two slots.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        total = slots = 2**32 // (num_slices - 2) + draw.integer(1, 10_000)
        users = {slots - 2: [total - 1, total - 3], slots - 1: [total - 2]}
        x, lora_a = (
            lazy_zeros(total, 1, dtype=dtype),
            lazy_zeros(slots, num_slices, 1, 1, dtype=dtype),
        )
        order = lazy_zeros(total, dtype=torch.int32)
        has, used = torch.zeros(total, dtype=torch.bool), torch.zeros(slots, dtype=torch.bool)
        rows = [row for slot in users for row in users[slot]]
        order[total - 3 :] = torch.tensor(rows, dtype=torch.int32)
        has[rows] = used[list(users)] = True
        x[rows] = draw.normal(len(rows), 1, dtype=dtype)
        for slot in users:
            lora_a[slot] = draw.normal(num_slices, 1, 1, dtype=dtype)
        hidden = lazy_zeros(num_slices, total, 1, dtype=torch.float32)
        lists = {
            "order": order,
            "lora_ids": torch.tensor([-1, *users], dtype=torch.int32),
            "num_tokens": torch.tensor([total - 3, 2, 1], dtype=torch.int32),
            "starts": torch.tensor([0, total - 3, total - 1, total], dtype=torch.int32),
        }
        rules = {
            "x": TensorRule(axes=("row", "in")),
            "order": TensorRule(axes=("place",)),
            "lora_a": TensorRule(
                readable=used.view(-1, 1, 1, 1), axes=("slot", "slice", "rank", "in"), why=TENANT
            ),
            "hidden": TensorRule(
                readable=torch.zeros(1, 1, 1, dtype=torch.bool),
                writable=has[None, :, None],
                required=has[None, :, None],
                axes=("slice", "row", "rank"),
                why="shrinking needs nothing of what is there",
            ),
        }
        problem = dict(x=x, lora_a=lora_a, hidden=hidden) | lists
        return problem, CaseRules(rules, programs=(0,), rest_is_idle=True)

    return make


def shrink(
    counts: Sequence[int | None],
    base: int,
    in_size: int,
    rank: int,
    slices: int = 1,
    padding: int = 1,
    strided: bool = True,
    far_rows: bool = False,
    far_slots: bool = False,
    only_rank: int | None = None,
    tiles: dict[str, int] | None = None,
    nan: bool = False,
    size: float = 1.0,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`counts[s]` rows use slot s (None: a prime number), and `base` rows none.

    `only_rank`: the adapters have fewer rows than the slots, the rest is zero. `tiles` are used
    instead of the launcher's. `nan`: a number of row 1 is NaN, and one of the last slot's. `size`
    multiplies weights; rows are divided by its square.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        users = [draw.prime() if count is None else count for count in counts]
        if far_slots:
            users = place_far(users, slices * rank * in_size)
        mapping = mapping_of(draw, users, base)
        total = len(mapping)
        used = [slot for slot, count in enumerate(users) if count]
        lora_a = slots_of(draw, dtype, used, (slices, rank, in_size), len(users) + 1)
        if only_rank is not None:
            lora_a[used, :, only_rank:] = 0.0
        lora_a[used] *= size
        x = draw.normal(total, in_size, dtype=dtype) / size**2
        if nan:
            x[1, in_size - 1] = lora_a[used[-1], 0, 0, 0] = torch.nan
        if strided:
            x = inside_wider(x, in_size, 2 * in_size)
        if far_rows:
            x = far_apart(x)
        hidden = draw.normal(slices, total, rank)
        problem: dict[str, Any] = dict(x=x, lora_a=lora_a, hidden=hidden)
        problem |= segments(mapping, padding)
        has = (mapping >= 0)[None, :, None]
        rules = rules_of(mapping, len(lora_a), "x", "lora_a")
        rules["x"] = TensorRule(axes=("row", "in"))
        rules["hidden"] = TensorRule(
            readable=torch.zeros(1, 1, 1, dtype=torch.bool),
            writable=has,
            required=has,
            axes=("slice", "row", "rank"),
            why="shrinking needs nothing of what is there",
        )
        return problem, CaseRules(rules, constants=tiles or {})

    return make


USERS: dict[str, dict[str, Any]] = {
    "one adapter": dict(counts=[7], base=0, padding=0),
    "one adapter with 40 rows": dict(counts=[40], base=0, padding=0),
    "two adapters": dict(counts=[3, 0, 4], base=2, padding=1),
    "two adapters, one with 40 rows": dict(counts=[1, 0, 40], base=0, padding=2),
}

SHRINK = (
    Case("one", "one row, one adapter", "float32",
         shrink([1], 0, 32, 16, padding=0, strided=False)),
    Case("segments", "segments of 1, 15, 16 and 17 rows", "float32",
         shrink([1, 15, 16, 17], 6, 64, 16)),
    Case("base", "rows of the base only", "float32", shrink([0, 0], 5, 32, 16, padding=2)),
    Case("odd", "97 features, rank 8, three slices", "bfloat16",
         shrink([None, 0, None], 2, 97, 8, 3)),
    Case("long", "one adapter with 70 rows", "float16", shrink([0, 70], 3, 48, 16)),
    Case("padded", "rank 1 in slots of 16", "float32", shrink([3, 4], 1, 40, 16, 2, only_rank=1)),
    Case("rank-40", "a rank that is no power of two", "float32", shrink([5, 0, 9], 4, 130, 40)),
    Case("rank-5", "an odd rank", "float32", shrink([5, 3], 1, 40, 5)),
    Case("rank-130", "a large rank", "float32", shrink([10, 5], 3, 32, 130)),
    Case("rank-300", "a larger rank", "float16", shrink([2, 3], 1, 24, 300)),
    Case("rank-300-long", "a larger rank, one adapter with 70 rows", "float32",
         shrink([70, 3], 1, 40, 300)),
    Case("sliced", "x is a slice of a wider matrix", "float16",
         shrink([None, None], 3, 64, 16)),
    Case("far-rows", "rows of x 2^30 elements apart", "float16",
         shrink([3, 2], 1, 32, 16, far_rows=True)),
    Case("far-slots", "slots behind the 2^32nd element", "float16",
         shrink([2, 0, 3], 2, 512, 16, 2, far_slots=True)),
    Case("many-slices", "rows, slots and slices whose counts multiply to more than 2^32", "float16",
         many_slices(64)),
    Case("slices", "130 slices", "float32", shrink([2, 1], 1, 24, 8, 130)),
    Case("hundreds", "250 rows of 9 adapters", "float16", shrink([25] * 9, 25, 40, 8)),
    Case("many-adapters", "a row each for 260 adapters", "float32", shrink([1] * 260, 3, 16, 8)),
    Case("many-tiles", "33,001 rows of one adapter", "float16",
         shrink([33_001], 0, 16, 8, padding=0), long=True),
    Case("wide-input", "70,000 features", "bfloat16",
         shrink([3, 2], 1, 70_000, 8), long=True),
    Case("nan", "NaN in a row", "float32", shrink([4, 5], 0, 70, 16, 2, nan=True)),
    Case("vast", "rows beyond float16, weights below it", "bfloat16",
         shrink([4, 5], 2, 70, 16, size=1 / VAST)),
    Case("tiles", "other tiles than the launcher's", "float32",
         shrink([9, 20], 2, 100, 24, 2, tiles={"IN_TILE": 32})),
    Case("empty", "segments of no request before and behind", "bfloat16",
         shrink([0, 4, 0, 0, 6], 3, 64, 16, padding=3)),
    Case("traffic", "64 rows of 8 adapters, rank 16 of 512", "bfloat16",
         shrink([8] * 8, 0, 512, 16, strided=False), graded=True),
    Case("traffic-qkv", "32 rows of 4 adapters, three slices", "bfloat16",
         shrink([6] * 4, 8, 256, 16, 3), graded=True),
    *mixed(
        lambda users, **sizes: shrink(**users, **sizes),
        users=USERS,
        in_size={"64 features": 64, "97 features": 97, "40 features": 40},
        rank={"rank 16": 16, "rank 5": 5, "rank 24": 24},
        slices={"": 1, "2 slices": 2, "3 slices": 3},
        strided={"a slice": True, "contiguous": False},
    ),
)  # fmt: skip


# ---------------------------------------------------------------- expand
def expand(
    counts: Sequence[int | None],
    base: int,
    widths: Sequence[int],
    rank: int,
    padding: int = 1,
    strided: bool = True,
    far_rows: bool = False,
    far_slots: bool = False,
    nan: bool = False,
    size: float = 1.0,
) -> Callable[[Draw, torch.dtype], Setup]:
    """As `shrink`; y has slices of these widths. Rows of `hidden` that have no adapter are NaN.
    `nan`: so are a number of row 1 of `hidden`, one of row 2 of y and one of the last slot's.
    `size` multiplies weights; y is divided by it, `hidden` by its square."""

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        users = [draw.prime() if count is None else count for count in counts]
        if far_slots:
            users = place_far(users, rank * sum(widths))
        mapping = mapping_of(draw, users, base)
        total, out_size = len(mapping), sum(widths)
        used = [slot for slot, count in enumerate(users) if count]
        lora_b = slots_of(draw, dtype, used, (rank, out_size), len(users) + 1)
        lora_b[used] *= 0.25 * size  # so that what is added is about as large as y
        hidden = unfilled(len(widths), total, rank, dtype=torch.float32)
        rows = mapping >= 0
        hidden[:, rows] = draw.normal(len(widths), int(rows.sum()), rank) / size**2
        y = draw.normal(total, out_size, dtype=dtype) / size
        if nan:
            hidden[0, 1, rank - 1] = y[2, out_size - 1] = torch.nan
            lora_b[used[-1], 0, 1] = torch.nan
        if strided:
            y = inside_wider(y, out_size, out_size)
        if far_rows:
            y = far_apart(y)
        slice_starts = torch.tensor([0, *widths]).cumsum(0).int()
        problem: dict[str, Any] = dict(
            hidden=hidden, lora_b=lora_b, slice_starts=slice_starts, max_width=max(widths), y=y
        )
        problem |= segments(mapping, padding)
        rules = rules_of(mapping, len(lora_b), "hidden", "lora_b")
        rules["hidden"] = TensorRule(
            readable=rows[None, :, None], axes=("slice", "row", "rank"), why=BASE
        )
        rules["slice_starts"] = TensorRule(axes=("slice",))
        rules["y"] = TensorRule(
            readable=rows[:, None],
            writable=rows[:, None],
            required=rows[:, None],
            axes=("row", "out"),
            why=BASE,
        )
        return problem, CaseRules(rules)

    return make


def long_hidden(num_slices: int, rank: int) -> Callable[[Draw, torch.dtype], Setup]:
    """So many rows that `hidden` has more than 2^32 numbers. Three rows at the
    end have adapters. What is summed is positive: each number of y is judged alone, and one in
    which the terms cancel would be far off for its size.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        total = 2**32 // (num_slices * rank) + draw.integer(10, 10_000)
        users = {0: [total - 1, total - 3], 2: [total - 2]}
        rows = [row for slot in users for row in users[slot]]
        order = lazy_zeros(total, dtype=torch.int32)
        order[total - 3 :] = torch.tensor(rows, dtype=torch.int32)
        has = torch.zeros(total, dtype=torch.bool)
        has[rows] = True
        hidden = lazy_zeros(num_slices, total, rank, dtype=torch.float32)
        hidden[:, rows] = draw.normal(num_slices, len(rows), rank).abs()
        y = lazy_zeros(total, num_slices, dtype=dtype)
        y[rows] = draw.normal(len(rows), num_slices, dtype=dtype)
        lora_b = slots_of(draw, dtype, list(users), (rank, num_slices), 3).abs()
        lists = {
            "order": order,
            "lora_ids": torch.tensor([-1, *users], dtype=torch.int32),
            "num_tokens": torch.tensor([total - 3, 2, 1], dtype=torch.int32),
            "starts": torch.tensor([0, total - 3, total - 1, total], dtype=torch.int32),
        }
        used = torch.tensor([True, False, True])
        mine = has[:, None]
        rules = {
            "order": TensorRule(axes=("place",)),
            "hidden": TensorRule(has[None, :, None], axes=("slice", "row", "rank"), why=BASE),
            "lora_b": TensorRule(used.view(-1, 1, 1), axes=("slot", "rank", "out"), why=TENANT),
            "y": TensorRule(mine, mine, mine, axes=("row", "out"), why=BASE),
        }
        starts = torch.arange(num_slices + 1).int()
        problem = dict(hidden=hidden, lora_b=lora_b, slice_starts=starts, max_width=1, y=y)
        return problem | lists, CaseRules(rules, programs=(0,), rest_is_idle=True)

    return make


def late_slices(widths: Sequence[int]) -> Callable[[Draw, torch.dtype], Setup]:
    """Two narrow slices behind a first one that is wider than float32 can count. That one's numbers
    of `hidden` are 0, and its programs do not run: of the others the first tile does."""

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        first = 2**24 + 2 * draw.integer(3, 500) + 1
        starts = torch.tensor([0, first, *widths]).cumsum(0).int()
        out_size = int(starts[-1])
        y, lora_b = lazy_zeros(1, out_size, dtype=dtype), lazy_zeros(1, 1, out_size, dtype=dtype)
        numbers = draw.normal(2, sum(widths)).abs() / 8
        y[0, first:], lora_b[0, 0, first:] = 1 + numbers[0], numbers[1]  # no sum is near zero
        hidden = draw.normal(1 + len(widths), 1, 1).abs()
        hidden[0] = 0.0
        late = torch.arange(out_size)[None] >= first
        rules = {
            "y": TensorRule(late, late, late, axes=("row", "out"), why="it runs no program here"),
            "slice_starts": TensorRule(axes=("slice",)),
        }
        problem = dict(hidden=hidden, lora_b=lora_b, slice_starts=starts, max_width=first, y=y)
        problem |= segments(torch.zeros(1, dtype=torch.int64), 0)
        num_tiles = -(-first // EXPAND_TILE)
        tiles = tuple(num_tiles * (1 + index) for index in range(len(widths)))
        return problem, CaseRules(rules, tiles, axis=1, rest_is_idle=True)

    return make


EXPAND = (
    Case("one", "one row, one adapter", "float32",
         expand([1], 0, [32], 16, padding=0, strided=False)),
    Case("segments", "segments of 1, 15, 16 and 17 rows", "float32",
         expand([1, 15, 16, 17], 6, [64], 16)),
    Case("base", "rows of the base only", "float32", expand([0, 0], 5, [32], 16, padding=2)),
    Case("gqa", "queries of 256, keys and values of 128", "float32",
         expand([None, 0, None], 3, [256, 128, 128], 16)),
    Case("uneven", "slices of 65, 1 and 40", "bfloat16", expand([None, None], 2, [65, 1, 40], 8)),
    Case("long", "one adapter with 70 rows", "float16", expand([0, 70], 3, [96], 16)),
    Case("rank-40", "a rank that is no power of two", "float32",
         expand([5, 0, 9], 4, [70, 70], 40)),
    Case("rank-5", "an odd rank", "float32", expand([5, 3], 1, [40], 5)),
    Case("rank-130", "a large rank", "float32", expand([3, 2], 1, [40], 130)),
    Case("sliced", "y is a slice of a wider matrix", "float16",
         expand([None, None], 3, [64], 16)),
    Case("far-rows", "rows of y 2^30 elements apart", "float16",
         expand([3, 2], 1, [32], 16, far_rows=True)),
    Case("far-slots", "slots behind the 2^32nd element", "float16",
         expand([2, 0, 3], 2, [512, 512], 16, far_slots=True)),
    Case("many-slices", "130 slices", "float32",
         expand([3, 5], 2, [20, 8, 8, 40, 1, 33, 8, 8, 17, *[2] * 121], 8)),
    Case("long-hidden", "more than 2^32 numbers of hidden", "float32", long_hidden(2, 128)),
    Case("late-slices", "slices that begin behind the 2^24th column", "float32",
         late_slices([3, 20])),
    Case("nan", "NaN in a row of hidden, and of y", "float32",
         expand([4, 5], 0, [40, 30], 16, nan=True)),
    Case("vast", "hidden and y beyond float16, weights below it", "bfloat16",
         expand([4, 5], 2, [40, 30], 16, size=1 / VAST)),
    Case("rank-300", "a larger rank", "float32", expand([2, 3], 1, [40], 300)),
    Case("rank-300-long", "a larger rank, one adapter with 70 rows", "float16",
         expand([70, 3], 1, [70], 300)),
    Case("hundreds", "250 rows of 9 adapters", "float16", expand([25] * 9, 25, [24], 8)),
    Case("many-adapters", "a row each for 260 adapters", "float32", expand([1] * 260, 3, [16], 8)),
    Case("many-tiles", "33,001 rows of one adapter", "float16",
         expand([33_001], 0, [16], 8, padding=0), long=True),
    Case("wide-slices", "slices of 70,000 and 300", "float32",
         expand([7], 1, [70_000, 300], 8, padding=0), long=True),
    Case("empty", "segments of no request before and behind", "bfloat16",
         expand([0, 4, 0, 0, 6], 3, [64], 16, padding=3)),
    Case("traffic", "64 rows of 8 adapters, rank 16, 512 columns", "bfloat16",
         expand([8] * 8, 0, [512], 16, strided=False), graded=True),
    Case("traffic-gqa", "32 rows of 4 adapters, slices of 256, 128, 128", "bfloat16",
         expand([6] * 4, 8, [256, 128, 128], 16), graded=True),
    *mixed(
        lambda users, **sizes: expand(**users, **sizes),
        users=USERS,
        widths={
            "64 columns": [64],
            "33 columns": [33],
            "70 columns": [70],
            "slices of 40 and 24": [40, 24],
            "slices of 150 and 33": [150, 33],
            "slices of 65, 1 and 41": [65, 1, 41],
        },
        rank={"rank 16": 16, "rank 5": 5, "rank 24": 24},
        strided={"a slice": True, "contiguous": False},
    ),
)  # fmt: skip

CASES = {"lora_shrink": SHRINK, "lora_expand": EXPAND}
