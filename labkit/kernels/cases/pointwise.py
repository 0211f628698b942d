"""Cases for the fused kernels: awkward rows, slices of wider matrices, extreme numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

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

ROW_AXES = {2: ("token", "feature"), 3: ("token", "head", "feature")}


def _spoil(draw: Draw, x: torch.Tensor, number: float) -> None:
    """One number of `[T, ...]`, in the second row, becomes this one."""
    x[1].view(-1)[draw.integer(0, x[1].numel() - 1)] = number


# ---------------------------------------------------------------- rms_norm
def norm(
    tokens: int | None,
    size: int,
    heads: int = 0,
    residual: bool = False,
    sliced: bool = True,
    far: bool = False,
    scale: float = 1.0,
    loud: float = 0.0,
    zero_row: bool = False,
    eps: float = 1e-6,
    spoilt: float | None = None,
    where: str = "x",
) -> Callable[[Draw, torch.dtype], Setup]:
    """`tokens` rows (None: a prime number) of `size`; with `heads` one row a head.

    `scale` multiplies x and the residual; its square need not fit into float16. `loud` is added to
    one number a row, at a place that is drawn. `far` rows lie 2^30 elements apart. `spoilt`: one
    number is this one, NaN or infinity, of the tensor that `where` names.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = draw.prime() if tokens is None else tokens
        shape = (count, heads, size) if heads else (count, size)
        x = (draw.normal(*shape) * scale).to(dtype)
        if loud:
            for row in x.view(-1, size):
                row[draw.integer(0, size - 1)] += loud
        if zero_row:
            x[count // 2] = 0.0
        rest = (draw.normal(*shape) * scale).to(dtype) if residual else None
        if zero_row and rest is not None:
            rest[count // 2] = 0.0
        weight = (0.5 + draw.normal(*shape[1:])).to(dtype)
        if size > 1:
            weight[..., draw.integer(0, size - 1)] = 0.0  # a weight like any other
        if spoilt is not None:
            tensors = {"x": x, "residual": rest, "weight": weight.expand(2, *weight.shape)}
            _spoil(draw, tensors[where], spoilt)
        if sliced or far:
            x = far_apart(x) if far else inside_wider(x, size, 2 * size)
        problem = dict(
            x=x,
            weight=weight,
            output=unfilled(*shape, dtype=dtype),
            eps=eps,
            residual=rest,
        )
        axes = ROW_AXES[len(shape)]
        rules = {name: TensorRule(axes=axes) for name in ("x", "output", "residual")}
        if residual:
            everything = torch.ones((1,) * len(shape), dtype=torch.bool)
            rules["residual"] = TensorRule(required=everything, axes=axes)
        return problem, CaseRules(rules)

    return make


def long_norm(size: int) -> Callable[[Draw, torch.dtype], Setup]:
    """So many rows that the last begins behind the 2^32nd number; the first and the last run."""

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = 2**32 // size + 2
        programs = [0, count - 1]
        x, residual, output = (lazy_zeros(count, size, dtype=dtype) for _ in range(3))
        for tensor in (x, residual):
            tensor[programs] = draw.normal(2, size, dtype=dtype)
        weight = (1 + draw.normal(size) / 4).to(dtype)
        rows = _only(programs, count, 2)
        axes, why = ROW_AXES[2], "its program does not run here"
        rules = {
            "x": TensorRule(readable=rows, axes=axes, why=why),
            "residual": TensorRule(rows, rows, rows, axes, why),
            "output": TensorRule(writable=rows, required=rows, axes=axes),
        }
        problem = dict(x=x, weight=weight, output=output, eps=1e-5, residual=residual)
        return problem, CaseRules(rules, tuple(programs))

    return make


def _only(programs: Sequence[int], count: int, dims: int) -> torch.Tensor:
    """`[count, 1, ...]`: True in the rows of the programs that run."""
    rows = torch.zeros(count, *[1] * (dims - 1), dtype=torch.bool)
    rows[list(programs)] = True
    return rows


RMS_NORM = (
    Case("one", "one token of one feature", "float32", norm(1, 1, sliced=False)),
    Case("row", "a row of 64", "float32", norm(3, 64)),
    Case("almost", "a row of 63", "float16", norm(None, 63)),
    Case("over", "a row of 65, with a residual", "bfloat16", norm(None, 65, residual=True)),
    Case("prime", "a row of 1031, with a residual", "float32", norm(3, 1031, residual=True)),
    Case("heads", "3 heads with a weight each, slices of qkv", "float16",
         norm(None, 80, heads=3)),
    Case("one-token", "one token of 5 heads", "float32", norm(1, 24, heads=5)),
    Case("nan", "a row with NaN: it spoils its row, and must not vanish", "float32",
         norm(5, 70, spoilt=torch.nan)),
    Case("nan-residual", "NaN in a row of the residual", "float32",
         norm(5, 70, residual=True, spoilt=torch.nan, where="residual")),
    Case("nan-weight", "NaN in the weight", "float16",
         norm(4, 70, spoilt=torch.nan, where="weight")),
    Case("inf", "infinity: it is NaN in its row, and all else there is 0", "float32",
         norm(4, 70, spoilt=torch.inf)),
    Case("inf-bf16", "infinity below 0, in a head of 3", "bfloat16",
         norm(3, 48, heads=3, spoilt=-torch.inf)),
    Case("zero", "a row of zeros", "float32", norm(5, 128, residual=True, zero_row=True)),
    Case("large", "numbers whose squares do not fit into float16", "float16",
         norm(4, 96, scale=1000.0)),
    Case("huge", "numbers that do not fit into float16", "bfloat16", norm(4, 64, scale=1e6)),
    Case("huge-residual", "the same with a residual", "bfloat16",
         norm(4, 64, residual=True, scale=1e6)),
    Case("small", "numbers whose squares are near eps", "bfloat16", norm(4, 96, scale=1e-3)),
    Case("loud", "one large number in each row", "float32", norm(None, 300, loud=3000.0)),
    Case("far", "rows 2^30 elements apart", "float16", norm(6, 512, residual=True, far=True)),
    Case("eps", "an eps as large as the numbers' squares", "float32", norm(None, 90, eps=0.5)),
    Case("eps-tiny", "numbers that an eps of 1e-6 would drown", "float32",
         norm(3, 64, scale=1e-8, eps=1e-20)),
    Case("vast", "numbers whose squares float32 just holds", "float32", norm(3, 64, scale=1e15)),
    Case("heads-residual", "3 heads with a residual, and an eps of 0.3", "float32",
         norm(None, 48, heads=3, residual=True, eps=0.3)),
    Case("long", "more than 2^32 numbers", "float16", long_norm(2048)),
    Case("wide-row", "rows of 20,000", "float32", norm(2, 20_000)),
    Case("hundreds", "300 rows of 24", "float16", norm(300, 24)),
    Case("wide-heads", "9 heads of 96", "bfloat16", norm(4, 96, heads=9)),
    Case("many-heads", "139 heads of 16, and an eps of 0.3", "float16",
         norm(2, 16, heads=139, eps=0.3)),
    Case("eps-half", "an eps as large as the numbers' squares, with a residual", "bfloat16",
         norm(3, 90, residual=True, eps=0.5)),
    Case("traffic", "16 rows of 1024, with a residual", "bfloat16",
         norm(16, 1024, residual=True, sliced=False), graded=True),
    *mixed(
        norm,
        tokens={"5 tokens": 5, "one token": 1},
        size={"rows of 64": 64, "rows of 63": 63, "rows of 40": 40},
        heads={"": 0, "3 heads": 3},
        residual={"": False, "a residual": True},
        eps={"": 1e-6, "an eps of 0.4": 0.4},
        sliced={"a slice": True, "contiguous": False},
    ),
)  # fmt: skip


# ---------------------------------------------------------------- rope
def rope(
    tokens: int | None,
    heads: int,
    dim: int,
    sliced: bool = True,
    first: int = 0,
    far: bool = False,
    spoilt: float | None = None,
    size: float = 1.0,
    angle: float | None = None,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`tokens` consecutive positions from `first`; `far` tokens lie 2^30 elements apart. `spoilt`:
    one number is this one, NaN or infinity; `angle`: so is a cos, and the next feature's sin.
    `size` multiplies all numbers."""

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = draw.prime() if tokens is None else tokens
        x = draw.normal(count, heads, dim, dtype=dtype) * size
        if spoilt is not None:
            _spoil(draw, x, spoilt)
        speed = 10_000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        angles = (first + torch.arange(count, dtype=torch.float64))[:, None, None] * speed
        cos, sin = angles.cos(), angles.sin()
        if angle is not None:
            cos[1, 0, 0] = sin[1, 0, 1] = angle
        if sliced or far:
            x = far_apart(x) if far else inside_wider(x, 0, 2 * dim)
        problem = dict(
            x=x,
            cos=torch.cat((cos, cos), -1).to(dtype),
            sin=torch.cat((-sin, sin), -1).to(dtype),
        )
        axes = ("token", "head", "feature")
        everything = torch.ones(1, 1, 1, dtype=torch.bool)
        rules = {name: TensorRule(axes=axes) for name in ("cos", "sin")}
        rules["x"] = TensorRule(required=everything, axes=axes)
        return problem, CaseRules(rules)

    return make


def long_rope(dim: int) -> Callable[[Draw, torch.dtype], Setup]:
    """So many tokens that the last begins behind the 2^32nd number; the first and the last run."""

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = 2**32 // dim + 2
        programs = [0, count - 1]
        x, cos, sin = (lazy_zeros(count, 1, dim, dtype=dtype) for _ in range(3))
        x[programs] = draw.normal(2, 1, dim, dtype=dtype)
        angles = draw.normal(2, 1, dim // 2).double() * 3
        cos[programs] = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
        sin[programs] = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype)
        rows = _only(programs, count, 3)
        axes, why = ("token", "head", "feature"), "its program does not run here"
        rules = {name: TensorRule(readable=rows, axes=axes, why=why) for name in ("cos", "sin")}
        rules["x"] = TensorRule(rows, rows, rows, axes, why)
        return dict(x=x, cos=cos, sin=sin), CaseRules(rules, tuple(programs))

    return make


ROPE = (
    Case("one", "one token, at position 0: nothing turns", "float32", rope(1, 1, 2, False)),
    Case("head", "one head of 32", "float32", rope(3, 1, 32, first=7)),
    Case("odd-heads", "3 heads of 80", "float16", rope(None, 3, 80, first=100)),
    Case("sliced", "heads are a slice of qkv", "bfloat16", rope(None, 2, 64, first=5)),
    Case("far", "positions beyond 100,000", "float32", rope(5, 2, 64, first=100_003)),
    Case("wide", "8 heads of 128", "float16", rope(None, 8, 128, first=1)),
    Case("narrow", "5 heads of 6", "float32", rope(None, 5, 6, first=31)),
    Case("apart", "tokens 2^30 elements apart", "float16", rope(6, 2, 32, first=9, far=True)),
    Case("many-heads", "11 heads of 96", "bfloat16", rope(4, 11, 96, first=3)),
    Case("wide-head", "heads of 320", "float16", rope(2, 3, 320, first=4)),
    Case("all-heads", "150 heads of 8", "float32", rope(2, 150, 8, first=4)),
    Case("seventy-heads", "70 heads of 16", "float32", rope(2, 70, 16, first=4)),
    Case("hundreds", "250 tokens of one head, a slice of qkv", "float16",
         rope(250, 1, 16, first=2)),
    Case("nan", "NaN in a pair: it spoils both", "bfloat16",
         rope(3, 2, 32, first=3, spoilt=torch.nan)),
    Case("nan-angle", "a cos and a sin are NaN", "float32", rope(3, 2, 32, angle=torch.nan)),
    Case("vast", "numbers beyond float16", "bfloat16", rope(5, 2, 64, first=3, size=VAST)),
    Case("tiny", "numbers below float16", "bfloat16", rope(5, 2, 64, first=3, size=1 / VAST)),
    Case("inf", "infinity in a pair: both become infinite", "float32",
         rope(3, 2, 32, first=3, spoilt=torch.inf)),
    Case("long", "more than 2^32 numbers", "float16", long_rope(64)),
    Case("traffic", "8 tokens, 16 heads of 128", "bfloat16", rope(8, 16, 128, False), graded=True),
    *mixed(
        rope,
        tokens={"5 tokens": 5, "one token": 1},
        heads={"one head": 1, "3 heads": 3, "4 heads": 4, "6 heads": 6},
        dim={"heads of 32": 32, "heads of 70": 70},
        sliced={"a slice": True, "contiguous": False},
        first={"from position 0": 0, "from position 900": 900},
    ),
)  # fmt: skip


# ---------------------------------------------------------------- silu_mul
LOUD_GATES = (-1e4, -100.0, 100.0, 1e4)


def silu(
    tokens: int | None,
    size: int,
    scale: float = 1.0,
    loud: bool = False,
    spoilt: float | None = None,
    level: float = 0.0,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`tokens` rows of `size` gates and `size` ups; `scale` multiplies the gates, and `level` is
    added to them.

    With `loud` one gate a row, at a place that is drawn, is so large that exp does not survive it.
    In bfloat16 an up beside it is larger than float16's largest number, too. `spoilt`: a gate is
    this number, NaN or infinity, and an up.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = draw.prime() if tokens is None else tokens
        gate_up = draw.normal(count, 2 * size)
        gate_up[:, :size] = gate_up[:, :size] * scale + level
        if scale > 20.0:  # what exp does not survive, and what is exactly nothing
            special = torch.tensor([-1e4, 1e4, -88.8, 88.8, 0.0])[: min(size, 5)]
            gate_up[0, : len(special)] = special
        for row in range(count if loud else 0):
            place = draw.integer(0, size - 1)
            gate_up[row, place] = LOUD_GATES[row % len(LOUD_GATES)]
            if dtype == torch.bfloat16:
                gate_up[row, place] *= 1e4
                gate_up[row, size + place] *= 1e10
        if spoilt is not None:
            _spoil(draw, gate_up[:, :size], spoilt)
            _spoil(draw, gate_up[:, size:], spoilt)
        problem = dict(gate_up=gate_up.to(dtype), output=unfilled(count, size, dtype=dtype))
        axes = ("token", "feature")
        rules = {name: TensorRule(axes=axes) for name in problem}
        return problem, CaseRules(rules)

    return make


def long_silu(size: int) -> Callable[[Draw, torch.dtype], Setup]:
    """So many rows that the last begins behind the 2^32nd number; the first and the last run."""

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = 2**32 // size + 2
        programs = (0, count - 1)
        gate_up = lazy_zeros(count, 2 * size, dtype=dtype)
        for row in programs:
            gate_up[row] = draw.normal(2 * size, dtype=dtype)
        rows = torch.zeros(count, 1, dtype=torch.bool)
        rows[list(programs)] = True
        axes = ("token", "feature")
        rules = {
            "gate_up": TensorRule(readable=rows, axes=axes, why="its program does not run here"),
            "output": TensorRule(writable=rows, required=rows, axes=axes),
        }
        output = lazy_zeros(count, size, dtype=dtype)
        return dict(gate_up=gate_up, output=output), CaseRules(rules, programs)

    return make


SILU_MUL = (
    Case("one", "one token of one feature", "float32", silu(1, 1)),
    Case("row", "rows of 64", "float32", silu(3, 64)),
    Case("almost", "rows of 1023", "float16", silu(2, 1023)),
    Case("tile", "rows of 1024", "bfloat16", silu(2, 1024)),
    Case("over", "rows of 1025: a second tile with one element", "float32", silu(2, 1025)),
    Case("nan", "a gate and an up are NaN", "float16", silu(3, 90, spoilt=torch.nan)),
    Case("inf", "a gate and an up are infinite", "float32", silu(3, 90, spoilt=torch.inf)),
    Case("one-row", "one row of 2,500: three tiles", "float32", silu(1, 2500)),
    Case("loud", "one large gate among small ones", "float32", silu(None, 300, loud=True)),
    Case("long", "more than 2^32 numbers", "float16", long_silu(3072)),
    Case("prime", "rows of 97", "bfloat16", silu(None, 97)),
    Case("hundreds", "260 rows of 12", "float16", silu(260, 12)),
    Case("wide", "rows of 70,000: 69 tiles", "float32", silu(2, 70_000)),
    Case("loud-bf16", "gates and ups beyond float16", "bfloat16", silu(None, 70, loud=True)),
    Case("extreme", "gates of +-1e4", "float32", silu(3, 130, scale=30.0)),
    Case("middling", "gates around +-8: neither small nor all or nothing", "float32",
         silu(3, 400, scale=8.0)),
    Case("quiet", "gates around -30: results are as small as an exponential", "float32",
         silu(3, 90, level=-30.0)),
    Case("half-extreme", "gates of +-1e4 in float16", "float16", silu(None, 50, scale=30.0)),
    Case("traffic", "8 rows of 3072", "bfloat16", silu(8, 3072), graded=True),
    Case("traffic-odd", "8 rows of 1100", "bfloat16", silu(8, 1100), graded=True),
    *mixed(
        silu,
        tokens={"one row": 1, "4 rows": 4},
        size={"of 64": 64, "of 97": 97, "of 2,048": 2048, "of 1,100": 1100},
        loud={"": False, "one loud gate": True},
    ),
)  # fmt: skip

CASES = {"rms_norm": RMS_NORM, "rope": ROPE, "silu_mul": SILU_MUL}
