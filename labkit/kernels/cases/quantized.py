"""Cases for quantised numbers: half steps, rows of zeros, groups inside tiles, bytes behind heads.

Whole numbers know no NaN. What may not be read here holds the largest of them instead, and the
monitor notices the read itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.cases.decode import FAR_ALONG, MIXED_DECODE, PER_REQUEST
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
from labkit.kernels.cases.pages import BIG_CACHE, Pages, among, int32, levels, stored_rules
from labkit.kernels.cases.rules import PRODUCT, CaseRules, TensorRule
from labkit.kernels.cases.storing import SLICES, TOKENS, among_idle, places

SCALE_BYTES = 4
NOBODYS = -128


def whole(draw: Draw, *shape: int, bits: int = 8) -> Tensor:
    """Whole numbers of so many bits, about as often small as large: int8."""
    largest = 2 ** (bits - 1) - 1
    numbers = draw.normal(*shape) * largest / 3
    return numbers.round().clamp(-largest - 1, largest).to(torch.int8)


def positive(draw: Draw, *shape: int) -> Tensor:
    """Scales: float32 around 0.02, never 0."""
    return (0.005 + 0.02 * draw.normal(*shape).abs()).contiguous()


def spread_rows(tensor: Tensor, strided: bool, far: bool) -> Tensor:
    """Rows as they are, inside a wider matrix, or 2^30 elements apart."""
    if far:
        return far_apart(tensor)
    if not strided:
        return tensor
    if tensor.is_floating_point():
        return inside_wider(tensor, 3, 5)
    wide = torch.full((len(tensor), tensor.shape[1] + 8), NOBODYS, dtype=tensor.dtype)
    wide[:, 3 : 3 + tensor.shape[1]] = tensor
    return wide[:, 3 : 3 + tensor.shape[1]]


STEPS = (15, 61, 63, 117, 119, 223, 237, 241, 255)
"""Whole steps of which a multiple and a half, times 1 / step in float32, often is not that multiple
and a half; 127 times a step, times 1 / 127, is the step."""


def between(draw: Draw, *shape: int) -> tuple[Tensor, int]:
    """Numbers half way between two steps, and the step; a kernel that multiplies by the step's
    reciprocal, where it should divide, takes each to the other side."""
    step = STEPS[draw.integer(0, len(STEPS) - 1)]
    middle = torch.arange(-126, 126) + 0.5
    product = (middle * step) * (1.0 / torch.tensor(float(step)))
    wrong = middle[product.round() != middle.round()]
    count = math.prod(shape)
    places = torch.tensor([draw.integer(0, len(wrong) - 1) for _ in range(count)])
    return wrong[places].view(shape) * step, step


# ---------------------------------------------------------------- per_token_quant_int8
def per_token(
    tokens: int | None,
    size: int,
    scale: float = 1.0,
    zero_row: bool = False,
    halves: bool = False,
    quotients: bool = False,
    strided: bool = True,
    far: bool = False,
    least: float | None = None,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`tokens` rows (None: a prime number). `halves`: every number lies between two steps of 1;
    `quotients`: of another step, by which it takes a division to see that.
    `least`: no scale is smaller; None = as the engine has it."""

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = draw.prime() if tokens is None else tokens
        x = (draw.normal(count, size) * scale).to(dtype)
        x *= torch.tensor([1.0, 30.0, 0.01])[torch.arange(count) % 3, None].to(dtype)
        if halves:  # the largest is 127, so a step is 1
            steps = torch.tensor([draw.integer(-126, 125) for _ in range(count * size)])
            x = (steps.view(count, size) + 0.5).to(dtype)
            x[:, draw.integer(0, size - 1)] = 127.0
        if quotients:
            x, step = between(draw, count, size)
            x[:, draw.integer(0, size - 1)] = 127.0 * step
        if zero_row:
            x[count // 2] = 0.0
        problem: dict[str, Any] = dict(
            x=spread_rows(x, strided, far),
            output=torch.full((count, size), NOBODYS, dtype=torch.int8),
            scale=unfilled(count, 1, dtype=torch.float32),
        )
        problem |= {} if least is None else {"least": least}
        axes = ("token", "feature")
        rules = {name: TensorRule(axes=axes) for name in ("x", "output")}
        return problem, CaseRules(rules | {"scale": TensorRule(axes=("token", "column"))})

    return make


def long_per_token(size: int) -> Callable[[Draw, torch.dtype], Setup]:
    """So many rows that the last begins behind the 2^32nd number; the first and the last run."""

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = 2**32 // size + 2
        programs = [0, count - 1]
        x, output = (lazy_zeros(count, size, dtype=kind) for kind in (dtype, torch.int8))
        x[programs] = draw.normal(2, size, dtype=dtype)
        rows = torch.zeros(count, 1, dtype=torch.bool)
        rows[programs] = True
        rules = {
            "x": TensorRule(rows, axes=("token", "feature"), why="its program does not run here"),
            "output": TensorRule(writable=rows, required=rows, axes=("token", "feature")),
            "scale": TensorRule(writable=rows, required=rows, axes=("token", "column")),
        }
        scale = lazy_zeros(count, 1, dtype=torch.float32)
        return dict(x=x, output=output, scale=scale), CaseRules(rules, tuple(programs))

    return make


PER_TOKEN_QUANT = (
    Case("one", "one token of one feature", "float32", per_token(1, 1, strided=False)),
    Case("row", "rows of 64, loud and quiet", "float32", per_token(3, 64)),
    Case("over", "a row of 65", "bfloat16", per_token(None, 65)),
    Case("prime", "a row of 1031", "float16", per_token(2, 1031)),
    Case("halves", "every number lies half way between two steps", "float32",
         per_token(2, 96, halves=True)),
    Case("quotients", "half way between two steps, which are no powers of two", "float32",
         per_token(3, 96, quotients=True), divides=True),
    Case("zero", "a row of zeros", "float32", per_token(5, 80, zero_row=True)),
    Case("tiny", "numbers for which the least scale is too large", "float32",
         per_token(3, 64, scale=2e-12)),
    Case("least", "a least scale that quiet tokens need", "float32",
         per_token(6, 48, least=0.004)),
    Case("large", "numbers up to 60,000", "float16", per_token(2, 64, scale=500.0)),
    Case("sliced", "x is a slice of a wider matrix", "bfloat16", per_token(None, 77)),
    Case("far", "tokens 2^30 elements apart", "float16", per_token(6, 48, far=True)),
    Case("wide-row", "rows of 20,000", "float32", per_token(2, 20_000)),
    Case("many", "300 tokens", "float32", per_token(300, 40)),
    Case("huge", "numbers up to 1e30", "bfloat16", per_token(3, 40, scale=1e28)),
    Case("long", "more than 2^32 numbers", "float16", long_per_token(1024)),
    Case("traffic", "16 tokens of 1,024", "bfloat16", per_token(16, 1024, strided=False),
         graded=True),
    *mixed(
        per_token,
        tokens={"5 tokens": 5, "one token": 1},
        size={"of 64": 64, "of 97": 97, "of 70": 70},
        least={"": None, "a least scale that quiet tokens need": 0.004},
        strided={"a slice": True, "contiguous": False},
    ),
)  # fmt: skip


# ---------------------------------------------------------------- products
PROGRAM = 64
"""Tokens, or rows of a weight, of one program, if there are many."""


def at_the_ends(
    many: int,
    make: Callable[[Draw, torch.dtype], Setup],
    names: Sequence[str],
    axis: int,
    program: int = PROGRAM,
    grid_axis: int | None = None,
) -> Callable[[Draw, torch.dtype], Setup]:
    """The tokens of a product (`axis` 0), or the rows of its weight (1), at both ends of so many
    that the results, or the weights, are more than 2^32 numbers. Only the first and the last
    program along that axis run; along the other there is one, so that a kernel which numbers its
    tiles in another order still works on these. `names`: the tensors with a row for each.
    `program`: how many a program has; `grid_axis`: along which axis of the grid, if not `axis`.
    """

    def spread(draw: Draw, dtype: torch.dtype) -> Setup:
        problem, rules = make(draw, dtype)
        rest = len(problem[names[0]]) - program  # of the last program
        count = (many // program + 1) * program + rest
        rows = [*range(program), *range(count - rest, count)]
        mine = torch.zeros(count, dtype=torch.bool)
        mine[rows] = True
        tensors = dict(rules.tensors)
        for name in names:
            few = problem[name]
            problem[name] = lazy_zeros(count, *few.shape[1:], dtype=few.dtype)
            problem[name][rows] = few
            tensors[name] = replace(
                rules.rule(name), readable=mine[:, None], why="its program does not run here"
            )
        tokens, out_rows = problem["output"].shape
        shape = (count, out_rows) if axis == 0 else (tokens, count)
        problem["output"] = lazy_zeros(*shape, dtype=dtype)
        flags = mine[:, None] if axis == 0 else mine[None]
        tensors["output"] = replace(rules.rule("output"), writable=flags, required=flags)
        return problem, CaseRules(
            tensors,
            programs=(0, count // program),
            axis=axis if grid_axis is None else grid_axis,
            program_rows=tuple(rows),
        )

    return spread


# ---------------------------------------------------------------- w8a8_gemm
def w8a8(
    tokens: int | None,
    rows: int,
    columns: int,
    extreme: bool = False,
    cancel: bool = False,
    strided: bool = True,
    far: bool = False,
    nan: bool = False,
    size: float = 1.0,
    **constants: int,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`[tokens, columns]` times `[rows, columns]`; `extreme`: all numbers are 127 or -127;
    `cancel`: the second half of a sum takes back what the first has added, but for a little.
    `nan`: a token's scale is NaN, and a row's infinite. `size` multiplies a token's scale.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = draw.prime() if tokens is None else tokens
        x, weight = whole(draw, count, columns), whole(draw, rows, columns)
        x[-1, -1], weight[0, 0] = -128, -128
        if extreme:
            x, weight = (torch.where(t >= 0, 127, -127).to(torch.int8) for t in (x, weight))
            weight[0], x[0] = 127, 127  # a sum of columns * 16129
        if cancel:
            x, half = x.clamp(min=-127).abs(), columns // 2
            x[:, :half] = x[:, half : 2 * half]
            weight[:, :half] = 127
            weight[:, half:] = -127
            weight[:, -1] += torch.arange(rows).to(torch.int8) % 5 + 1
        problem = dict(
            x=spread_rows(x, strided, far),
            weight=weight,
            x_scale=positive(draw, count, 1) * size,
            weight_scale=positive(draw, rows, 1),
            output=unfilled(count, rows, dtype=dtype),
        )
        if nan:
            problem["x_scale"][1], problem["weight_scale"][2] = torch.nan, torch.inf
        return problem, CaseRules(PRODUCT, constants=constants)

    return make


W8A8_GEMM = (
    Case("one", "one token, two rows, three columns", "float32", w8a8(1, 2, 3, strided=False)),
    Case("tile", "exactly one tile", "float32", w8a8(16, 64, 64)),
    Case("over", "one more than a tile in every direction", "float32", w8a8(17, 65, 65)),
    Case("prime", "67 rows of 101", "float16", w8a8(None, 67, 101)),
    Case("many", "300 tokens", "float16", w8a8(300, 20, 40)),
    Case("thousands", "4,200 tokens", "float16", w8a8(4200, 3, 20)),
    Case("rows", "1,100 rows", "bfloat16", w8a8(2, 1100, 40)),
    Case("narrow", "tiles of 32 columns", "bfloat16", w8a8(9, 50, 100, COLUMN_TILE=32)),
    Case("extreme", "sums of 127 x 127, which float16 cannot hold", "float32",
         w8a8(3, 20, 300, extreme=True)),
    Case("cancel", "sums that pass 2^24 and come back", "float32",
         w8a8(3, 5, 10_000, cancel=True)),
    Case("nan", "a token's scale is NaN, a row's infinite", "float32",
         w8a8(5, 20, 70, nan=True)),
    Case("vast", "results beyond float16", "bfloat16", w8a8(5, 60, 70, size=VAST)),
    Case("long", "1,100 columns", "bfloat16", w8a8(4, 33, 1100)),
    Case("longer", "70,000 columns", "float32", w8a8(2, 3, 70_000), long=True),
    Case("sliced", "x is a slice of a wider matrix", "float16", w8a8(None, 40, 70)),
    Case("far", "tokens 2^30 elements apart", "bfloat16", w8a8(6, 40, 48, far=True)),
    Case("long-output", "more than 2^32 results", "float16",
         at_the_ends(2**32 // 60, w8a8(73, 60, 20), ("x", "x_scale"), axis=0)),
    Case("long-weight", "a weight of more than 2^32 numbers", "bfloat16",
         at_the_ends(2**22, w8a8(1, 73, 1024), ("weight", "weight_scale"), axis=1)),
    Case("traffic", "16 tokens, 128 rows of 512", "float32", w8a8(16, 128, 512, strided=False),
         graded=True),
    *mixed(
        w8a8,
        tokens={"one token": 1, "9 tokens": 9, "70 tokens": 70},
        rows={"64 rows": 64, "67 rows": 67, "130 rows": 130},
        columns={"64 columns": 64, "101 columns": 101, "90 columns": 90},
        strided={"a slice": True, "contiguous": False},
    ),
)  # fmt: skip


# ---------------------------------------------------------------- w4a16_gemm
def pack_words(stored: Tensor) -> Tensor:
    """`[N, K]` of 0 .. 15 as `[N, ceil(K / 8)]` int32, the first number in the lowest bits.

    What a last word has no number for is 15.
    """
    missing = torch.full((len(stored), -stored.shape[1] % 8), 15)
    nibbles = torch.cat((stored.long(), missing), 1).unflatten(1, (-1, 8))
    words = sum(nibbles[..., i] << (4 * i) for i in range(8))
    return torch.as_tensor(words).to(torch.uint32).view(torch.int32)


def w4a16(
    tokens: int | None,
    rows: int,
    columns: int,
    groups: int = 1,
    symmetric: bool = False,
    strided: bool = True,
    far: bool = False,
    nan: bool = False,
    size: float = 1.0,
    **constants: int,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`[tokens, columns]` times `[rows, columns]` of 4 bits, in `groups` a row. `nan`: a number of
    x is NaN, and a scale. `size` multiplies the scales; x is divided by its square."""

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = draw.prime() if tokens is None else tokens
        stored = (whole(draw, rows, columns, bits=4) + 8).long()
        stored[0, : columns // 2] = 15  # words with their highest bit set
        stored[-1, columns // 2 :] = 0
        zero = torch.full((rows, groups), 8, dtype=torch.uint8)
        if not symmetric:
            zero = (whole(draw, rows, groups, bits=4) + 8).to(torch.uint8)
            zero[0, -1], zero[-1, 0] = 0, 15
        problem = dict(
            x=spread_rows(draw.normal(count, columns, dtype=dtype) / size**2, strided, far),
            words=pack_words(stored),
            scale=positive(draw, rows, groups) * size,
            zero=zero,
            output=unfilled(count, rows, dtype=dtype),
        )
        if nan:
            problem["x"][1, columns - 1], problem["scale"][2, 0] = torch.nan, torch.nan
        axes = {
            "x": ("token", "column"), "words": ("row", "word"), "scale": ("row", "group"),
            "zero": ("row", "group"), "output": ("token", "row"),
        }  # fmt: skip
        rules = {name: TensorRule(axes=a) for name, a in axes.items()}
        return problem, CaseRules(rules, constants=constants)

    return make


W4A16_GEMM = (
    Case("one", "one token, two rows, eight columns", "float32", w4a16(1, 2, 8, strided=False)),
    Case("tile", "exactly one tile, one group", "float32", w4a16(16, 64, 64)),
    Case("groups", "groups of 32 inside tiles of columns", "float32", w4a16(5, 20, 128, 4)),
    Case("inside", "a group ends inside a tile", "float32", w4a16(3, 17, 144, 3)),
    Case("over", "one more than a tile in every direction", "float16", w4a16(17, 65, 72)),
    Case("tail", "a last word that is not full", "float32", w4a16(2, 9, 75, 3)),
    Case("channel", "one scale a row", "bfloat16", w4a16(None, 67, 200)),
    Case("many", "300 tokens", "float16", w4a16(300, 20, 40)),
    Case("thousands", "4,200 tokens", "float16", w4a16(4200, 3, 24)),
    Case("rows", "1,100 rows", "bfloat16", w4a16(2, 1100, 40)),
    Case("nan", "a number of x is NaN, and a scale", "float32", w4a16(3, 10, 64, 2, nan=True)),
    Case("vast", "numbers beyond float16, weights below it", "bfloat16",
         w4a16(5, 60, 64, 2, size=1 / VAST)),
    Case("long", "1,100 columns", "float32", w4a16(2, 9, 1100, 10)),
    Case("longer", "70,400 columns in 2,200 groups", "float32",
         w4a16(2, 3, 70_400, 2_200), long=True),
    Case("narrow", "tiles of 32 columns", "bfloat16", w4a16(9, 50, 96, 2, COLUMN_TILE=32)),
    Case("symmetric", "zero is 8 everywhere", "float16", w4a16(None, 33, 96, 3, symmetric=True)),
    Case("sliced", "x is a slice of a wider matrix", "bfloat16",
         w4a16(None, 40, 64, 2)),
    Case("far", "tokens 2^30 elements apart", "float16", w4a16(6, 40, 64, 2, far=True)),
    Case("long-output", "more than 2^32 results", "float16",
         at_the_ends(2**32 // 60, w4a16(73, 60, 24), ("x",), axis=0)),
    Case("long-weight", "a weight of more than 2^32 words", "bfloat16",
         at_the_ends(2**25, w4a16(1, 73, 1024, 128), ("words", "scale", "zero"), axis=1)),
    Case("traffic", "16 tokens, 128 rows of 512 in groups of 128", "bfloat16",
         w4a16(16, 128, 512, 4, strided=False), graded=True),
    *mixed(
        lambda columns, **sizes: w4a16(columns=columns[0], groups=columns[1], **sizes),
        columns={
            "64 columns": (64, 1),
            "64 columns in 4 groups": (64, 4),
            "75 columns in 3 groups": (75, 3),
            "90 columns in 2 groups": (90, 2),
            "33 columns": (33, 1),
            "96 columns in 6 groups": (96, 6),
        },
        tokens={"one token": 1, "9 tokens": 9, "70 tokens": 70},
        rows={"64 rows": 64, "67 rows": 67, "130 rows": 130},
        symmetric={"": False, "zero is 8": True},
        strided={"a slice": True, "contiguous": False},
    ),
)  # fmt: skip


# ---------------------------------------------------------------- int8 pages
def as_bytes(x: Tensor) -> Tensor:
    """Heads `[..., D]` float32 as `[..., D + 4]` int8: numbers, then the scale's bytes."""
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-6)
    return torch.cat(((x / scale).round().to(torch.int8), scale.view(torch.int8)), -1)


def store(
    tokens: int | None,
    heads: int,
    dim: int,
    block_size: int,
    padding: int = 0,
    scale: float = 1.0,
    halves: bool = False,
    quotients: bool = False,
    odd: bool = False,
    slices: Sequence[str] = ("key", "value"),
    far: bool = False,
    num_blocks: int | None = None,
    least: float | None = None,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`tokens` new tokens (None: a prime number) into slots in any order; -1 for `padding` more.
    Those in `slices` are slices of qkv.

    `least`: no scale is smaller; None = as the engine has it. `odd`: among them are zeros only,
    infinity and NaN. With `num_blocks` a cache whose last blocks are in use.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        slots, mapping, blocks = places(draw, tokens, padding, block_size, num_blocks)
        count = len(mapping)
        loud = torch.tensor([1.0, 50.0, 0.02])[torch.arange(count) % 3, None, None]
        loud *= scale
        key, value = ((draw.normal(count, heads, dim) * loud).to(dtype) for _ in range(2))
        if halves:
            key = (draw.normal(count, heads, dim) * 40).floor().clamp(-126, 125) + 0.5
            key, value = key.to(dtype), -key.to(dtype)
            key[..., 0], value[..., -1] = 127.0, -127.0
        if quotients:
            key, step = between(draw, count, heads, dim)
            value = -key
            key[..., 0], value[..., -1] = 127.0 * step, -127.0 * step
        if odd:
            key[0], value[1, 0] = 0.0, 0.0
            key[1, 0, :3] = torch.tensor([float("inf"), float("nan"), -float("inf")])
            value[0, 0, 1] = float("nan")
            value[2, -1, 1:3] = torch.tensor([-float("inf"), float("inf")])
        row = heads * dim
        if "key" in slices:
            key = inside_wider(key, 2 * row, row)
        if "value" in slices:
            value = inside_wider(value, 3 * row, row)
        if far:
            key, value = far_apart(key), far_apart(value)
        shape = (blocks, block_size, heads, dim)
        if num_blocks:
            bytes_of = (*shape[:3], dim + SCALE_BYTES)
            caches = [lazy_zeros(*bytes_of, dtype=torch.int8) for _ in range(2)]
        else:
            caches = [as_bytes(draw.normal(*shape)) for _ in range(2)]
        problem: dict[str, Any] = dict(
            key=key, value=value, key_cache=caches[0], value_cache=caches[1], slot_mapping=mapping
        )
        problem |= {} if least is None else {"least": least}
        return problem, stored_rules(slots, mapping, blocks, block_size, "byte")

    return make


STORE_KV_INT8 = (
    Case("one", "one token of one head", "float32", store(1, 1, 32, 16, slices=())),
    Case("block", "a whole block and a token, loud and quiet", "float32", store(17, 2, 64, 16)),
    Case("prime", "80 features, which are no power of two", "bfloat16", store(None, 3, 80, 16)),
    Case("odd-size", "70 features: no multiple of four", "float16", store(None, 2, 70, 4)),
    Case("halves", "every number lies half way between two steps", "float32",
         store(4, 2, 64, 4, halves=True)),
    Case("quotients", "half way between two steps, which are no powers of two", "float32",
         store(4, 2, 64, 4, quotients=True), divides=True),
    Case("odd", "zeros, infinity and NaN", "float32", store(5, 2, 32, 4, odd=True)),
    Case("odd-half", "infinity in half precision", "float16", store(4, 6, 32, 4, odd=True)),
    Case("tiny", "numbers for which the least scale is too large", "float32",
         store(4, 2, 32, 4, scale=1e-6)),
    Case("vast", "numbers beyond float16", "bfloat16", store(4, 2, 64, 4, scale=1e8)),
    Case("least", "a least scale that quiet tokens need", "float32",
         store(6, 2, 32, 4, least=0.004)),
    Case("padding", "slots of -1 in between", "float16", store(7, 2, 64, 16, padding=5)),
    Case("nothing", "only slots of -1", "float32", store(0, 2, 32, 16, padding=4)),
    Case("sliced", "keys and values are slices of qkv", "float16",
         store(6, 2, 32, 4, 2)),
    Case("many-heads", "139 heads", "float16", store(2, 139, 8, 4)),
    Case("one-token", "one token of 5 heads", "float32", store(1, 5, 24, 4)),
    Case("far", "tokens 2^30 elements apart", "float16", store(6, 1, 32, 4, far=True)),
    Case("wide-head", "heads of 200", "float16", store(3, 2, 200, 16)),
    Case("many", "700 tokens, 200 of which are stored", "float32",
         store(200, 2, 16, 16, padding=500)),
    Case("deep", "9 of 70,000 tokens are stored", "bfloat16",
         among_idle(70_000, store(9, 1, 16, 7))),
    Case("big-cache", "more than 2^32 bytes a cache, and 2^25 slots", "float16",
         store(5, 1, 124, 16, num_blocks=BIG_CACHE // (16 * 128))),
    Case("traffic", "64 tokens of 4 heads", "bfloat16", store(64, 4, 128, 16, slices=()),
         graded=True),
    *mixed(
        lambda tokens, **sizes: store(tokens=tokens[0], padding=tokens[1], **sizes),
        tokens=TOKENS,
        heads={"one head": 1, "3 heads": 3},
        dim={"of 32": 32, "of 70": 70, "of 35": 35},
        block_size={"blocks of one": 1, "blocks of 16": 16, "blocks of 12": 12},
        least={"": None, "a least scale that quiet tokens need": 0.004},
        slices=SLICES,
    ),
)  # fmt: skip


class BytePages(Pages):
    """Pages of int8 heads with their scales; slots that no query may see hold a scale of NaN."""

    def _cache(self, draw: Draw, dtype: torch.dtype, total: int, heads: int, dim: int) -> Tensor:
        shape = (total, self.block_size, heads, dim + SCALE_BYTES)
        if torch.Size(shape).numel() > 2**31:
            cache = lazy_zeros(*shape, dtype=torch.int8)
        else:
            cache = torch.full(shape, NOBODYS, dtype=torch.int8)
            cache[..., dim:] = torch.tensor([float("nan")]).view(torch.int8)
        self.heads = heads, dim
        loud = draw.normal(int(self.slots.sum()), heads, 1).exp()
        cache[self.slots] = as_bytes(draw.normal(len(loud), heads, dim) * loud)
        return cache

    def put(self, row: int, key: Tensor, value: Tensor) -> None:
        """The context of a request, `[length, Hkv, D]` each."""
        for position, heads in enumerate(zip(as_bytes(key), as_bytes(value), strict=True)):
            place = self.place(row, position)
            self.key[place], self.value[place] = heads


def uneven(paged: BytePages, query: Tensor) -> None:
    """One key, a request's first or its last, weighs as much as all others together, which are
    alike, and has a value of the other sign."""
    query.zero_()[..., 0] = 1.0
    for row, length in enumerate(paged.seq_lens):
        key, value = paged.draw.normal(2, length, *paged.heads)
        loud = length - 1 if row % 2 else 0
        key[..., 0], value = 0.0, value - 3
        key[loud, :, 0], value[loud] = math.log(length - 1), value[loud] + 6
        paged.put(row, key, value)


def faint(paged: BytePages, query: Tensor) -> None:
    """As `pages.faint`: many keys, each of which weighs little."""
    query.zero_()[..., 0] = 1.0
    for row, length in enumerate(paged.seq_lens):
        key, value = paged.draw.normal(2, length, *paged.heads)
        place = torch.arange(length)
        is_loud = (place >= length - 5 if row % 2 else place < 5)[:, None]
        key[..., 0] = torch.where(is_loud, 0.0, -12.0)
        paged.put(row, key, value + torch.where(is_loud, 0.0, 3.0)[..., None])


def vast(paged: BytePages, query: Tensor) -> None:
    """As `pages.vast`: beyond float16, and below it."""
    query /= VAST
    for row, length in enumerate(paged.seq_lens):
        key, value = paged.draw.normal(2, length, *paged.heads) * VAST
        paged.put(row, key, value)


def apart(paged: BytePages, query: Tensor) -> None:
    """As `pages.apart`: each head needs a maximum of its own."""
    query.zero_()[..., 0] = levels(*query.shape[:2])
    for row, length in enumerate(paged.seq_lens):
        key, value = paged.draw.normal(2, length, *paged.heads)
        key[..., 0] = 1 + key[..., 0] / 32
        paged.put(row, key, value)


def creeping(paged: BytePages, query: Tensor) -> None:
    """Scores that rise by less than a millionth a token, and values that rise with them."""
    query.zero_()[..., 0] = 1.0
    for row, length in enumerate(paged.seq_lens):
        key, value = torch.zeros(length, *paged.heads), paged.draw.normal(length, *paged.heads)
        rise = torch.arange(length)[:, None] / length
        key[..., 0] = 2e-3 * rise
        paged.put(row, key, value + 2 * rise[..., None])


def decode(
    seq_lens: Sequence[int | None],
    group: int,
    kv_heads: int,
    dim: int,
    block_size: int,
    window: int | None = None,
    far: bool = False,
    low: bool = False,
    falling: bool = False,
    even: bool = False,
    scale: float | None = None,
    steady: bool = False,
    abyss: bool = False,
    change: Callable[[BytePages, Tensor], None] | None = None,
    key_tile: int | None = None,
    order: bool = False,
    **pages: Any,
) -> Callable[[Draw, torch.dtype], Setup]:
    """One new token a request; a length of None is drawn. `low`: all scores are about -110;
    `falling`: they fall by 4 from token to token, from 100 on; `even`: all are 0. `steady`: values
    are about 3 and scores differ little, so that what weights lose by rounding averages out; a
    value's scale, which all tokens share, lies between two numbers of the dtype, and does not.
    `abyss`: scores are about -2 million, exact and thousands apart. `key_tile` is used instead of
    the launcher's. `change` gets pages and queries, and the scale is 1. With `order` programs start
    in an order of requests that is drawn.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        lens = [draw.integer(2, 3 * block_size + 1) if n is None else n for n in seq_lens]
        first = [max(n - (window or n), 0) for n in lens]
        paged = BytePages(draw, dtype, lens, block_size, kv_heads, dim, first, **pages)
        heads = group * kv_heads
        query = draw.normal(len(lens), heads, dim, dtype=dtype)
        if low:  # exp of -110 is 0 in float32, so only the true maximum can be subtracted
            query.zero_()[..., 0] = 1.0
            numbers = draw.normal(int(paged.slots.sum()), kv_heads, dim)
            numbers[..., 0] -= 110.0
            paged.key[paged.slots] = as_bytes(numbers)
        if even:
            query.zero_()
        if steady:
            step = torch.finfo(dtype).eps / 32  # of numbers from 1/32 to 1/16
            largest = 127 * step * (round(1 / 24 / step) + 0.49)
            numbers = 3 + draw.normal(int(paged.slots.sum()), kv_heads, dim) / 4
            numbers = numbers.clamp(max=largest)
            numbers[..., 0] = largest
            paged.value[paged.slots] = as_bytes(numbers)
            query /= 16
        if abyss:
            query.zero_()[..., 0] = 1.0
            numbers = draw.normal(int(paged.slots.sum()), kv_heads, dim)
            levels = torch.tensor(draw.order(range(len(numbers))))
            numbers[..., 0] = -127 * 2**14 * (1 + levels[:, None] / 512)
            paged.key[paged.slots] = as_bytes(numbers)
        if falling:
            query.zero_()[..., 0] = 1.0
            for row, length in enumerate(lens):
                for position in range(length):
                    head = draw.normal(kv_heads, dim)
                    head[:, 0] = 100.0 - 4 * position
                    paged.key[paged.place(row, position)] = as_bytes(head)
        if change:
            change(paged, query)
        query = far_apart(query) if far else inside_wider(query, 0, 2 * kv_heads * dim)
        problem: dict[str, Any] = dict(
            query=query,
            key_cache=paged.key,
            value_cache=paged.value,
            block_table=far_apart(paged.table) if far else paged.table,
            seq_lens=int32(lens),
            output=unfilled(len(lens), heads, dim, dtype=dtype),
            scale=scale or (1.0 if low or falling or abyss or change else dim**-0.5),
            window=window,
        )
        axes = ("request", "head", "dim")
        rules = paged.rules() | {"query": TensorRule(axes=axes), "output": TensorRule(axes=axes)}
        rules["seq_lens"] = TensorRule(axes=("request",))
        if order:
            problem["order"] = torch.tensor(draw.order(range(len(lens))))
            rules["order"] = TensorRule(axes=("place",))
        constants = {"KEY_TILE": key_tile} if key_tile else {}
        return problem, CaseRules(rules, constants=constants)

    return make


PAGED_DECODE_INT8 = (
    Case("one", "one token of context", "float32", decode([1], 1, 1, 32, 16), lone=True),
    Case("ragged", "contexts that end before, at and after a block's border", "float32",
         decode([1, 15, 16, 17, None], 2, 2, 32, 16)),
    Case("tiles", "contexts around 32 and 64 tokens", "float32",
         decode([31, 33, 65], 4, 1, 32, 16)),
    Case("block-1", "blocks of one token", "float16", decode([1, 5, None], 4, 1, 64, 1)),
    Case("odd-group", "3 heads share one, 70 features", "bfloat16", decode([None, 9], 3, 2, 70, 4)),
    Case("wide", "8 heads share one, 128 features", "float16", decode([33, None], 8, 1, 128, 32)),
    Case("inert", "rows without a request", "float32", decode([0, None, 0], 2, 1, 32, 16)),
    Case("window-1", "each token sees only itself", "float32",
         decode([1, 16, 17], 2, 1, 32, 16, 1), lone=True),
    Case("window-odd", "a window of 13", "bfloat16", decode([5, 13, 14, 40], 1, 2, 64, 4, 13)),
    Case("shared", "requests that share their first blocks", "float16",
         decode([9, 14, 19], 2, 2, 32, 4, shared=2)),
    Case("falling", "scores that fall from tile to tile", "float32",
         decode([70, 33], 1, 1, 32, 16, falling=True)),
    Case("steady", "values that differ little, over two tiles", "float16",
         decode([128, 121, 150], 4, 2, 64, 16, steady=True), once=True),
    Case("steady-bf16", "values that differ little, over two tiles", "bfloat16",
         decode([128, 121, 150], 4, 2, 64, 16, steady=True), once=True),
    Case("thousands", "140,000 tokens of context", "float32",
         decode([140_000], 1, 1, 16, 128, even=True, key_tile=512), long=True),
    Case("distant", "the last 40 of 33 million tokens", "float32",
         decode([FAR_ALONG + 5, 70], 2, 1, 16, 12, 40)),
    Case("block-100", "blocks of 100 tokens", "float32", decode([250, None], 2, 2, 32, 100)),
    Case("block-100-half", "blocks of 100 tokens", "float16", decode([201, 99], 2, 1, 32, 100)),
    Case("block-600", "blocks of 600 tokens", "float32", decode([1100, None], 2, 1, 16, 600)),
    Case("block-0", "block 0, a block like any other", "float16",
         decode([50, 3], 2, 1, 32, 16, zero=True)),
    Case("abyss", "scores around -2,000,000", "float32",
         decode([40, 9], 2, 1, 16, 16, abyss=True)),
    Case("wide-head", "200 features", "float32", decode([9, None], 2, 1, 200, 16)),
    Case("long", "1,100 tokens of context", "float32", decode([1100], 1, 1, 16, 16, even=True)),
    Case("block-12", "blocks of 12, six heads", "float32", decode([30, None], 1, 6, 32, 12)),
    Case("many", "66 requests", "float32", decode([5, 17, 2] * 22, 1, 1, 16, 4)),
    Case("large-group", "131 heads share one", "float32", decode([9, None], 131, 1, 16, 16)),
    Case("wide-window", "a window of 33,500 tokens", "float32",
         decode([35_000, 40], 2, 1, 16, 16, 33_500, even=True, key_tile=256)),
    Case("all-heads", "131 key/value heads", "float32", decode([5], 2, 131, 16, 4)),
    Case("low", "scores of about -110", "float32", decode([40, 7], 2, 1, 64, 16, low=True)),
    Case("low-half", "scores of about -110", "float16",
         decode([140, 7, 130, 95, 150, 121], 1, 2, 64, 16, low=True)),
    Case("low-bf16", "scores of about -110, 16 requests: one's error leaves much to chance",
         "bfloat16", decode([90, 75, 130, 66] * 4, 3, 2, 64, 1, low=True)),
    Case("uneven", "one key, the first or the last, weighs as much as thousands", "float32",
         decode([3000, 2900], 2, 1, 16, 16, change=uneven)),
    Case("creeping", "scores that rise by less than a millionth a token", "float32",
         decode([3000], 1, 1, 16, 16, change=creeping)),
    Case("apart", "heads whose scores lie around -128, 0 and 128", "float32",
         decode([70, 33], 3, 2, 64, 16, change=apart)),
    Case("twins", "requests of equal length", "float32",
         decode([21, 21, 5, 21], 2, 2, 32, 16)),
    Case("large-scale", "scores times 0.4, a window; every head has its own key", "float16",
         decode([20, None], 1, 3, 32, 16, 11, scale=0.4)),
    Case("small-scale", "scores times 0.03, a window and blocks of one token", "bfloat16",
         decode([40, None], 3, 1, 80, 1, 13, scale=0.03)),
    Case("other-scale", "scores times 0.4", "float32", decode([20, None], 2, 1, 64, 16, scale=0.4)),
    Case("thousand", "4 of 1,100 requests, far from each other", "float32",
         among(1100, decode([9, 2, None, 17], 2, 1, 16, 16), PER_REQUEST)),
    Case("far", "rows of queries and block table 2^30 elements apart", "float16",
         decode([7, 3, 20, 1, 9, 18], 2, 1, 32, 16, far=True)),
    Case("order", "programs start in another order than requests stand in", "float32",
         decode([1, 40, 0, None, 70, 16], 2, 3, 32, 16, order=True), optional="order_ptr"),
    Case("order-window", "an order, a window of 13", "bfloat16",
         decode([5, 13, 14, 40, None], 3, 2, 70, 4, 13, order=True), optional="order_ptr"),
    Case("order-far", "an order of queries and rows of the block table 2^30 elements apart",
         "float16", decode([7, 3, 20, 1, 9, 18], 2, 2, 32, 16, far=True, order=True),
         optional="order_ptr"),
    Case("order-hundreds", "an order of 150 requests", "float16",
         decode([1 + (5 * i) % 17 for i in range(150)], 1, 2, 16, 3, order=True),
         optional="order_ptr"),
    Case("big-cache", "blocks behind the 2^32nd byte", "float16",
         decode([18, 3], 2, 2, 124, 16, num_blocks=BIG_CACHE // (16 * 2 * 128))),
    Case("many-blocks", "more than 2^24 blocks of one token", "float16",
         decode([5, 3], 2, 2, 124, 1, num_blocks=BIG_CACHE // (2 * 128))),
    Case("traffic", "256 tokens of context, 4 heads share one", "bfloat16",
         decode([256], 4, 1, 64, 16), graded=True),
    Case("faint", "many keys with hardly any weight", "float32",
         decode([1000, 900], 2, 2, 32, 16, change=faint)),
    Case("vast", "keys and values beyond float16, queries below it", "bfloat16",
         decode([70, 9], 2, 2, 64, 16, change=vast)),
    *mixed(decode, **MIXED_DECODE),
)  # fmt: skip

CASES = {
    "per_token_quant_int8": PER_TOKEN_QUANT,
    "w8a8_gemm": W8A8_GEMM,
    "w4a16_gemm": W4A16_GEMM,
    "store_kv_int8": STORE_KV_INT8,
    "paged_decode_int8": PAGED_DECODE_INT8,
}
