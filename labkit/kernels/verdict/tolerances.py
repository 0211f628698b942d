"""How far from float64 a kernel's numbers may be, and how much a kernel may move and compute.

A bound lies between what an honest kernel reaches and what the mildest seeded bug does, at their
geometric mean; both were measured on the cases of that kernel. For float32 that bug is an
accumulator in half precision: with 1e-2, which is a common bound, it passes. A float16 or
bfloat16 result is rounded so coarsely that a second rounding hides in the error's size. It does not
hide in how the errors are distributed: a kernel that computes in float32 and rounds once gives
float64's result, rounded, in all but some of a thousand elements; with one more rounding on the way
about a third are the number beside it. So elements are counted (`MISROUNDED`), too.

The honest errors are the largest of the engine's kernels over all cases at seed 20, interpreted
with AVX2 (`ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2`); with
AVX-512, which sums in another order, those that set a bound were the same to three digits.
`test_the_engines_kernels_pass` of `tests/labkit/kernels/test_check.py` measures them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """The relative L2 error of an honest kernel and of the mildest bug that must be found."""

    honest: float
    bug: float

    @property
    def limit(self) -> float:
        return (self.honest * self.bug) ** 0.5


EXACT = Bound(0.0, 0.0)
FLOAT32 = Bound(honest=5.7e-7, bug=5.4e-4)
"""Honest: 9.6 roundings u = 2^-24. 5.65e-7 is `tiled_prefill`'s, 5.32e-7 `paged_decode`'s, where
many keys have hardly any weight. Attention over many keys may need more: `long_sum`."""
ROUNDINGS = FLOAT32.honest * 2**24
SPLIT_FLOAT32 = Bound(honest=1.1e-6, bug=5.4e-4)
"""A split hands over its lse in float32. Around 110 these numbers lie 7.6e-6 apart, and the shares
of the splits inherit the rounding; one kernel that sees all keys has no such number."""
FLOAT16 = Bound(honest=3.1e-4, bug=1.2e-3)
"""Honest: 3.09e-4, of `silu_mul` in the few numbers of a drawn case."""
BFLOAT16 = Bound(honest=2.6e-3, bug=9.6e-3)
"""Honest: 2.5997e-3, of `split_decode` in a drawn case."""
INT8 = Bound(honest=2.4e-3, bug=9.6e-3)
"""Whole numbers: one of a small case may fall the other way; cutting fractions off does more."""
INT8_SCALE = Bound(honest=1.2e-7, bug=1.5e-5)
"""A largest magnitude over 127 is rounded once, or twice if 1/127 is. The bug loses a scale's last
byte."""
INT8_PAGES = {
    "float32": Bound(honest=2.5e-6, bug=5.4e-4),
    "float16": Bound(honest=5.0e-4, bug=2.0e-3),
    "bfloat16": Bound(honest=3.5e-3, bug=1.04e-2),
}
"""Attention over int8 pages rounds weights that hold the values' scales. In bfloat16 a drawn case
of few numbers needs 3.495e-3, the others 2.58e-3."""
LONE = Bound(honest=1.2e-7, bug=8e-6)
"""One value in float32, weighed by 1: two roundings. The bug loses the last byte of its scale."""
ROW_FACTOR = 4.0
"""A row of few numbers may be this much worse than all numbers together."""


def long_sum(tiles: int, condition: float = 1.0) -> float:
    """How much larger than `FLOAT32.honest` the honest error of attention is, if its keys come in
    so many tiles, and its values cancel.

    Attention is o = S / L with S = sum(w v) and L = sum(w). A kernel that sees its keys tile by
    tile rounds each of these twice a tile: the rescaled sum, and what is added to it. A rounding is
    wrong by at most u = 2^-24 of the sum so far, and by u / sqrt(3) on average; 4 n of them that
    know nothing of each other add up to u sqrt(4 n / 3). For 94 tiles these are 11 u, not 9.6.

    What float32 makes of S is the exact sum of terms w v (1 + d), where d holds all roundings that
    a term went through, its exp's among them. So an error is relative to the sum of the magnitudes:

        |error of S| <= max |d| sum(w |v|) = max |d| condition |S|,
        condition = sum(w |v|) / |sum(w v)|,

    in whatever order one sums. L has terms of one sign: its condition is 1. If a key with the
    weight of thousands has a value around 3, and the thousands have values around -3
    (`Case.cancels`), the condition is about 6. Random values cancel too, but as they are added:
    their sum so far is small as well, and nothing is allowed for that.

    A plain product over tiles of features rounds once a tile, a quarter as often.

    The limit knows none of this. It is the same for all cases, and further away than what this
    gives for any. A weight or a sum in half precision misses it there by more than five times.
    """
    return max(1.0, (4 * tiles / 3) ** 0.5 / ROUNDINGS) * condition


_EXACT_KERNELS = ("store_kv", "apply_token_bitmask", "rejection_random_sample", "decode_inputs")
_QUANTIZING = ("per_token_quant_int8", "store_kv_int8")
_BY_DTYPE = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16}


def bound(spec: str, dtype: str, output: str = "") -> Bound:
    """The bound of one kernel's outputs for inputs of a dtype; copies, masks, tokens are exact.

    Products of half-precision numbers are exact in float32: what only sums them, and leaves the
    sum in float32, has float32's bound. What quantises has whole numbers as its output, and scales
    in float32.
    """
    if spec in _QUANTIZING:
        return INT8_SCALE if output.endswith("scale") else INT8
    if spec == "paged_decode_int8":
        return INT8_PAGES[dtype]
    if spec == "draw_tokens":
        return FLOAT32 if output == "mass" else EXACT
    if spec in _EXACT_KERNELS or output == "value_cache":
        return EXACT
    if spec in ("split_decode", "mla_decode") and dtype == "float32":
        return SPLIT_FLOAT32
    return FLOAT32 if spec == "lora_shrink" or output == "states" else _BY_DTYPE[dtype]


ROUNDED_ONCE = frozenset(
    {
        "reduce_splits",
        "rms_norm",
        "rope",
        "qk_norm_rope_store",
        "silu_mul",
        "gemm",
        "gemv",
        "w8a8_gemm",
        "w4a16_gemm",
        "lora_expand",
        "grouped_gemm",
        "gdn_decode",
    }
)
"""Kernels whose half-precision outputs are float64's, rounded once, in every case. Attention rounds
its weights for `tl.dot`, so there only cases are judged in which that averages out."""
MISROUNDED = 0.02
"""Share of elements that may be another number than float64's, rounded."""
MISROUNDED_SUM = 0.1
"""The same for a weighted average whose weights are rounded."""
FALLEN = 0.002
"""The same for whole numbers of float32 inputs: hardly any quotient lies so near to the middle of
two that float32 takes the other. Of two numbers in half precision the quotient often is a middle.
"""
COUNTED, COUNTED_WHOLE = 200, 5000
"""An output with fewer elements is too small for a share of them to mean anything."""


def whole(spec: str, output: str) -> bool:
    """Whether an output consists of whole numbers, as quantising makes them."""
    return spec in _QUANTIZING and not output.endswith("scale")


def misrounded_limit(spec: str, once: bool, output: str) -> float | None:
    """The share of misrounded elements that is accepted; None where nothing is promised."""
    if whole(spec, output):
        return FALLEN
    if spec in ROUNDED_ONCE:
        return MISROUNDED
    return MISROUNDED_SUM if once else None


@dataclass(frozen=True)
class Efficiency:
    """What the engine's kernel needs on a graded case, over the least possible."""

    traffic: float
    flops: float | None = None


SLACK = 1.1
"""A kernel has full marks up to this many times the engine's traffic, or the minimum's."""
TIERS = ((1.0, 1.0), (1.5, 0.75), (2.0, 0.5))
"""(times the limit, share of the efficiency's points); beyond the last, a quarter."""

REFERENCE: Mapping[tuple[str, str], Efficiency] = {
    ("store_kv", "traffic"): Efficiency(1.0),
    ("paged_decode", "traffic-1"): Efficiency(1.0, flops=16.0),
    ("paged_decode", "traffic-2"): Efficiency(1.0, flops=8.0),
    ("paged_decode", "traffic-4"): Efficiency(1.0, flops=4.0),
    ("paged_decode", "traffic-8"): Efficiency(1.0, flops=2.0),
    ("reduce_splits", "traffic"): Efficiency(1.0),
    ("split_decode", "traffic"): Efficiency(1.0, flops=4.0),
    ("paged_prefill", "traffic"): Efficiency(1.75, flops=1.25),
    ("paged_prefill", "traffic-ragged"): Efficiency(1.27, flops=1.62),
    ("paged_prefill", "traffic-window"): Efficiency(1.15, flops=4.0),
    ("tiled_prefill", "traffic"): Efficiency(1.25, flops=1.5),
    ("tiled_prefill", "traffic-ragged"): Efficiency(1.19, flops=2.88),
    ("tiled_prefill", "traffic-window"): Efficiency(1.08, flops=5.34),
    ("rms_norm", "traffic"): Efficiency(1.23),
    ("rope", "traffic"): Efficiency(1.0),
    ("qk_norm_rope_store", "traffic"): Efficiency(1.17),
    ("decode_inputs", "traffic"): Efficiency(1.0),
    ("silu_mul", "traffic"): Efficiency(1.0),
    ("silu_mul", "traffic-odd"): Efficiency(1.0),
    ("apply_token_bitmask", "traffic"): Efficiency(1.0),
    ("per_token_quant_int8", "traffic"): Efficiency(1.0),
    ("gemm", "traffic"): Efficiency(1.11, flops=1.0),
    ("gemv", "traffic"): Efficiency(1.12),
    ("gemv", "traffic-4"): Efficiency(1.46),
    ("w8a8_gemm", "traffic"): Efficiency(1.1, flops=1.0),
    ("w4a16_gemm", "traffic"): Efficiency(1.34, flops=1.0),
    ("store_kv_int8", "traffic"): Efficiency(1.01),
    ("paged_decode_int8", "traffic"): Efficiency(1.0, flops=4.0),
    ("rejection_random_sample", "traffic"): Efficiency(1.03),
    ("draw_tokens", "traffic"): Efficiency(1.03),
    ("lora_shrink", "traffic"): Efficiency(1.0, flops=2.0),
    ("lora_shrink", "traffic-qkv"): Efficiency(1.22, flops=2.67),
    ("lora_expand", "traffic"): Efficiency(1.06, flops=2.0),
    ("lora_expand", "traffic-gqa"): Efficiency(1.02, flops=2.67),
    ("grouped_gemm", "traffic"): Efficiency(1.11, flops=1.0),
    ("gdn_decode", "traffic"): Efficiency(1.01),
    ("mla_decode", "traffic"): Efficiency(1.0, flops=1.0),
}
"""`tl.dot` takes no tile with a side below 16, so few heads in a group cost FLOPs for nothing; a
prefill reads keys once for each tile of queries; a norm reads its weight for each row, and a
product of few tokens all of x for each tile of rows."""


def limits(spec: str, case: str) -> Efficiency:
    """The largest ratios with full marks."""
    known = REFERENCE.get((spec, case), Efficiency(1.0))
    flops = None if known.flops is None else SLACK * known.flops
    return Efficiency(SLACK * max(known.traffic, 1.0), flops)


def share(ratio: float, limit: float) -> float:
    """The share of the efficiency's points for a ratio."""
    for times, points in TIERS:
        if ratio <= limit * times:
            return points
    return 0.25
