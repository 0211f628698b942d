"""Cases for decodes: ragged contexts, shared heads, windows, splits and their sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.kernels.cases.draw import VAST, Case, Draw, Setup, inside_wider, lazy_zeros, unfilled
from labkit.kernels.cases.mixed import mixed
from labkit.kernels.cases.pages import (
    BIG_CACHE,
    Pages,
    abyss,
    among,
    apart,
    creeping,
    deep_logits,
    faint,
    far_logits,
    far_queries,
    far_table,
    high_logits,
    int32,
    leaning,
    loud_key,
    low_logits,
    spoilt,
    steady,
    uneven,
    vast,
    zero_queries,
)
from labkit.kernels.cases.rules import CaseRules, TensorRule


def decode(
    seq_lens: Sequence[int | None],
    group: int,
    kv_heads: int,
    dim: int,
    block_size: int,
    window: int | None = None,
    splits: int = 0,
    scale: float | None = None,
    key_tile: int | None = None,
    change: Callable[[Pages, dict[str, Any]], None] | None = None,
    order: bool = False,
    **pages: Any,
) -> Callable[[Draw, torch.dtype], Setup]:
    """One new token a request; a length of None is drawn. With `splits` the split-KV problem.

    `scale`: None = what models have, 1 / sqrt(dim). `key_tile` is used instead of the launcher's.
    With `order` programs start in an order of requests that is drawn: a kernel is right with any.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        lens = [draw.integer(2, 3 * block_size + 1) if n is None else n for n in seq_lens]
        first = [max(n - (window or n), 0) for n in lens]
        paged = Pages(draw, dtype, lens, block_size, kv_heads, dim, first, **pages)
        heads = group * kv_heads
        query = draw.normal(len(lens), heads, dim, dtype=dtype)
        problem: dict[str, Any] = dict(
            query=inside_wider(query, 0, 2 * kv_heads * dim),
            key_cache=paged.key,
            value_cache=paged.value,
            block_table=paged.table,
            seq_lens=int32(lens),
            output=unfilled(len(lens), heads, dim, dtype=dtype),
            scale=scale or dim**-0.5,
            window=window,
        )
        axes = ("request", "head", "dim")
        rules = paged.rules() | {"query": TensorRule(axes=axes), "output": TensorRule(axes=axes)}
        rules["seq_lens"] = TensorRule(axes=("request",))
        if splits:
            problem["partial"] = unfilled(len(lens), heads, splits, dim, dtype=torch.float32)
            problem["lse"] = unfilled(len(lens), heads, splits, dtype=torch.float32)
            parts = ("request", "head", "split", "dim")
            rules |= {"partial": TensorRule(axes=parts), "lse": TensorRule(axes=parts[:3])}
        if change:
            change(paged, problem)
        if order:
            problem["order"] = torch.tensor(draw.order(range(len(lens))))
            rules["order"] = TensorRule(axes=("place",))
        constants = {"KEY_TILE": key_tile} if key_tile else {}
        return problem, CaseRules(rules, constants=constants)

    return make


PER_REQUEST = ("query", "block_table", "seq_lens", "output")
FAR_ALONG = 2**25
"""A position that neither 16 bits nor float32 tell from its neighbours."""

MIXED_DECODE: dict[str, dict[str, Any]] = {
    "seq_lens": {
        "one request of 150 tokens": [150],
        "one short request": [9],
        "requests of 70 and 33 tokens": [70, 33],
        "an inert row": [140, 0, 17],
        "short requests and an inert row": [0, 11, 15],
    },
    "group": {"": 1, "4 heads share one": 4, "3 heads share one": 3},
    "kv_heads": {"": 1, "3 key/value heads": 3},
    "dim": {"of 32": 32, "of 70": 70, "of 35": 35},
    "block_size": {"blocks of 16": 16, "blocks of one": 1, "blocks of 12": 12, "blocks of 5": 5},
    "window": {"": None, "a window of 13": 13},
    "scale": {"": None, "scores times 0.3": 0.3},
}

PAGED_DECODE = (
    Case("one", "one token of context", "float32", decode([1], 1, 1, 32, 16), lone=True),
    Case(
        "ragged", "contexts that end before, at and after a block's border", "float32",
        decode([1, 15, 16, 17, None], 2, 2, 32, 16),
    ),
    Case(
        "tiles", "contexts around 32 and 64 tokens", "float32",
        decode([31, 33, 65], 4, 1, 32, 16),
    ),
    Case("block-1", "blocks of one token", "float16", decode([1, 5, None], 4, 1, 64, 1)),
    Case("odd-group", "3 heads share one, 80 features", "bfloat16", decode([None, 9], 3, 2, 80, 4)),
    Case("wide", "8 heads share one, 128 features", "float16", decode([33, None], 8, 1, 128, 32)),
    Case("wide-head", "200 features", "float32", decode([9, None], 2, 1, 200, 16)),
    Case("inert", "rows without a request", "float32", decode([0, None, 0], 2, 1, 32, 16)),
    Case(
        "window-1", "each token sees only itself", "float32",
        decode([1, 16, 17], 2, 1, 32, 16, 1), lone=True,
    ),
    Case("window-odd", "a window of 13", "bfloat16", decode([5, 13, 14, 40], 1, 2, 64, 4, 13)),
    Case(
        "shared", "requests that share their first blocks", "float16",
        decode([9, 14, 19], 2, 2, 32, 4, shared=2),
    ),
    Case(
        "far-logits", "logits of +-1e4", "float32",
        decode([40, 11], 2, 1, 64, 16, change=far_logits),
    ),
    Case(
        "loud", "one key far longer than the others", "float32",
        decode([50, 7], 4, 1, 32, 16, change=loud_key),
    ),
    Case(
        "far", "queries 2^30 elements apart", "float16",
        decode([7, 3, 20, 1, 2, 5], 2, 1, 32, 16, change=far_queries),
    ),
    Case(
        "far-table", "rows of the block table 2^30 elements apart", "float16",
        decode([7, 3, 20, 1, 2, 5], 2, 1, 32, 16, change=far_table),
    ),
    Case(
        "many-heads", "7 key/value heads of 96, blocks of 12", "float32",
        decode([30, None], 3, 7, 96, 12),
    ),
    Case(
        "one-for-all", "131 heads share one", "float32",
        decode([17, None], 131, 1, 16, 16),
    ),
    Case(
        "thousands", "a context of 140,000 tokens", "float32",
        decode([140_000], 1, 1, 16, 128, key_tile=256), long=True,
    ),
    Case(
        "distant", "the last 40 of 33 million tokens", "float32",
        decode([FAR_ALONG + 5, 70], 2, 1, 16, 12, 40),
    ),
    Case("block-100", "blocks of 100 tokens", "float32", decode([250, None], 2, 2, 32, 100)),
    Case("block-100-half", "blocks of 100 tokens", "float16", decode([201, 99], 2, 1, 32, 100)),
    Case("block-600", "blocks of 600 tokens", "float32", decode([620, None], 2, 1, 16, 600)),
    Case("block-0", "block 0, a block like any other", "float16",
         decode([50, 3], 2, 1, 32, 16, zero=True)),
    Case("abyss", "logits around -3,000,000", "float32",
         decode([40, 9], 2, 1, 16, 16, change=abyss)),
    Case("apart", "heads whose scores lie around -128, 0 and 128", "float32",
         decode([70, 33], 3, 2, 64, 16, change=apart)),
    Case("twins", "requests of equal length", "float32",
         decode([21, 21, 5, 21], 2, 2, 32, 16)),
    Case("order", "programs start in another order than requests stand in", "float32",
         decode([1, 40, 0, None, 70, 16], 2, 3, 32, 16, order=True), optional="order_ptr"),
    Case("order-window", "an order, a window of 13", "bfloat16",
         decode([5, 13, 14, 40, None], 3, 2, 70, 4, 13, order=True), optional="order_ptr"),
    Case("order-far", "an order of queries 2^30 elements apart", "float16",
         decode([7, 3, 20, 1, 2, 5], 2, 2, 32, 16, change=far_queries, order=True),
         optional="order_ptr"),
    Case("order-hundreds", "an order of 150 requests", "float16",
         decode([1 + (5 * i) % 17 for i in range(150)], 1, 2, 16, 3, order=True),
         optional="order_ptr"),
    Case("nan", "NaN in a value: it spoils this number of an average", "float32",
         decode([40, 9], 2, 2, 32, 16, change=spoilt)),
    Case("uneven", "one key, the first or the last, weighs as much as thousands", "float32",
         decode([3000, 2900], 2, 1, 16, 16, change=uneven), cancels=True),
    Case(
        "long", "a context of 1,300 tokens beside a short one", "float32",
        decode([1300, 3], 1, 1, 32, 24),
    ),
    Case(
        "hundreds", "200 requests", "float16",
        decode([1 + (5 * i) % 17 for i in range(200)], 1, 1, 16, 3),
    ),
    Case(
        "other-scale", "scores times 0.4, not 1 / sqrt(dim)", "float32",
        decode([40, None], 2, 2, 64, 16, scale=0.4),
    ),
    Case("thousand", "4 of 1,100 requests, far from each other", "float32",
         among(1100, decode([9, 2, None, 17], 2, 1, 16, 16), PER_REQUEST)),
    Case("large-scale", "scores times 1.5, a window; every head has its own key", "float16",
         decode([5, 9, None], 1, 3, 32, 16, 7, scale=1.5)),
    Case("small-scale", "scores times 0.03, a window, 70 features", "bfloat16",
         decode([40, None], 3, 1, 70, 1, 13, scale=0.03)),
    Case("wide-scale", "scores times 0.3, 128 features", "float32",
         decode([20, None], 1, 1, 128, 1, scale=0.3)),
    Case(
        "low-logits", "logits around -110", "float32",
        decode([70, 9], 2, 1, 64, 16, change=low_logits),
    ),
    Case("low-half", "logits around -110, every head has its own key", "float16",
         decode([40, 9], 1, 2, 64, 16, change=low_logits)),
    Case(
        "high-logits", "logits around 110", "float32",
        decode([70, 9], 2, 1, 64, 16, change=high_logits),
    ),
    Case(
        "leaning", "long keys whose scores hardly differ", "float16",
        decode([40, 75], 2, 2, 80, 16, change=leaning),
    ),
    Case(
        "leaning-bf16", "long keys whose scores hardly differ", "bfloat16",
        decode([40, 75], 2, 2, 80, 16, change=leaning),
    ),
    Case(
        "steady", "values that differ little, over many tiles", "float16",
        decode([900, 700], 4, 1, 64, 16, change=steady), once=True,
    ),
    Case(
        "steady-bf16", "values that differ little, over many tiles", "bfloat16",
        decode([900, 700], 4, 1, 64, 16, change=steady), once=True,
    ),
    Case(
        "even", "queries of zeros: an average", "float32",
        decode([None, 35], 2, 1, 32, 16, change=zero_queries),
    ),
    Case(
        "wide-window", "a window of 33,500 tokens", "float32",
        decode([35_000, 40], 1, 1, 16, 16, 33_500, key_tile=256),
    ),
    Case("all-heads", "131 key/value heads", "float32", decode([5], 1, 131, 16, 4)),
    Case(
        "deep-logits", "logits around -12,000", "bfloat16",
        decode([40, 9], 2, 1, 16, 16, change=deep_logits),
    ),
    Case(
        "creeping", "scores that rise by less than a millionth a token", "float32",
        decode([3000], 1, 1, 16, 16, change=creeping),
    ),
    Case(
        "big-cache", "blocks behind the 2^32nd element", "float16",
        decode([18, 3], 2, 2, 128, 16, num_blocks=BIG_CACHE // (16 * 2 * 128)),
    ),
    Case("many-blocks", "more than 2^24 blocks of one token", "float16",
         decode([5, 3], 2, 2, 128, 1, num_blocks=BIG_CACHE // (2 * 128))),
    *(
        Case(
            f"traffic-{group}", f"256 tokens of context, {group} heads share one", "bfloat16",
            decode([256], group, 1, 64, 16), graded=True,
        )
        for group in (1, 2, 4, 8)
    ),
    Case("faint", "many keys with hardly any weight", "float32",
         decode([1000, 900], 2, 2, 32, 16, change=faint)),
    Case("vast", "keys and values beyond float16, queries below it", "bfloat16",
         decode([70, 9], 2, 2, 64, 16, change=vast)),
    *mixed(decode, **MIXED_DECODE),
)  # fmt: skip

SPLIT_DECODE = (
    Case("one", "one token for two splits", "float32", decode([1], 2, 1, 32, 16, splits=2)),
    Case(
        "ragged", "contexts around a tile, two splits", "float32",
        decode([31, 32, 33, None], 2, 1, 32, 16, splits=2),
    ),
    Case("empty", "more splits than tiles", "float32", decode([40, 1], 1, 2, 32, 4, splits=8)),
    Case("inert", "rows without a request", "float16", decode([0, 70], 4, 1, 64, 16, splits=4)),
    Case("window", "a window of 37", "bfloat16", decode([90, 20], 3, 1, 80, 32, 37, splits=2)),
    Case(
        "far-logits", "logits of +-1e4", "float32",
        decode([69], 2, 1, 64, 16, splits=2, change=far_logits),
    ),
    Case("block-1", "blocks of one token", "float16", decode([None, 66], 8, 1, 32, 1, splits=2)),
    Case(
        "many-heads", "5 key/value heads of 96, blocks of 12", "float32",
        decode([100, None], 2, 5, 96, 12, splits=3),
    ),
    Case(
        "one-for-all", "71 heads share one", "bfloat16",
        decode([70, None], 71, 1, 16, 16, splits=2),
    ),
    Case("thousands", "140,000 tokens for 2 splits", "float32",
         decode([140_000], 1, 1, 16, 128, splits=2, key_tile=256), long=True),
    Case("distant", "the last 100 of 33 million tokens", "float32",
         decode([FAR_ALONG + 5, 70], 2, 1, 16, 12, 100, splits=2)),
    Case("block-100", "blocks of 100 tokens", "float32",
         decode([350, None], 2, 2, 32, 100, splits=3)),
    Case("block-600", "blocks of 600 tokens", "float32",
         decode([1100, None], 2, 1, 16, 600, splits=3)),
    Case("many-splits", "39 splits, half of which are empty", "float32",
         decode([610, 33], 2, 1, 16, 16, splits=39)),
    Case("block-0", "block 0, a block like any other", "float16",
         decode([150, 3], 2, 1, 32, 16, splits=2, zero=True)),
    Case("abyss", "logits around -3,000,000", "float32",
         decode([100, 9], 2, 1, 16, 16, splits=2, change=abyss)),
    Case(
        "long", "1,500 tokens for 16 splits", "float32",
        decode([1500, 40], 1, 1, 32, 24, splits=16),
    ),
    Case(
        "other-scale", "scores times 0.4, not 1 / sqrt(dim)", "float32",
        decode([70, None], 2, 2, 64, 16, splits=2, scale=0.4),
    ),
    Case("large-scale", "scores times 1.5, a window; every head has its own key", "float16",
         decode([270, None], 1, 3, 32, 16, 200, splits=4, scale=1.5)),
    Case("small-scale", "scores times 0.03, a window, 70 features", "bfloat16",
         decode([150, None], 3, 1, 70, 1, 130, splits=5, scale=0.03)),
    Case(
        "low-logits", "logits around -110", "float32",
        decode([100, 9], 2, 1, 64, 16, splits=2, change=low_logits),
    ),
    Case("low-half", "logits around -110, four splits", "float16",
         decode([150, 9], 1, 2, 64, 16, splits=4, change=low_logits)),
    Case(
        "high-logits", "logits around 110", "float32",
        decode([100, 9], 2, 1, 64, 16, splits=2, change=high_logits),
    ),
    Case(
        "steady", "values that differ little, over many tiles", "float16",
        decode([900, 700], 4, 1, 64, 16, splits=2, change=steady), once=True,
    ),
    Case(
        "steady-bf16", "values that differ little, over many tiles", "bfloat16",
        decode([900, 700], 4, 1, 64, 16, splits=2, change=steady), once=True,
    ),
    Case(
        "nan", "NaN in a value: it spoils this number of an average", "float32",
        decode([100, 70], 2, 2, 16, 16, splits=2, change=spoilt),
    ),
    Case("apart", "heads whose scores lie around -128, 0 and 128", "float32",
         decode([150, 33], 3, 2, 64, 16, splits=2, change=apart)),
    Case("twins", "requests of equal length", "float32",
         decode([81, 81, 5, 81], 2, 2, 32, 16, splits=2)),
    Case("many-blocks", "more than 2^24 blocks of one token", "float16",
         decode([70, 3], 2, 2, 128, 1, splits=2, num_blocks=BIG_CACHE // (2 * 128))),
    Case(
        "uneven", "one key in one split weighs as much as 32 in the other", "float32",
        decode([64], 2, 1, 16, 16, splits=2, change=uneven),
    ),
    Case(
        "wide-window", "a window of 4,900 tokens", "float32",
        decode([5000, 40], 1, 1, 16, 16, 4900, splits=3),
    ),
    Case(
        "deep-logits", "logits around -12,000", "bfloat16",
        decode([100, 9], 2, 1, 16, 16, splits=2, change=deep_logits),
    ),
    Case(
        "traffic", "512 tokens of context in two splits, 4 heads share one", "bfloat16",
        decode([512], 4, 1, 64, 16, splits=2), graded=True,
    ),
    Case("faint", "many keys with hardly any weight", "float32",
         decode([1000, 900], 2, 2, 32, 16, splits=3, change=faint)),
    Case("vast", "keys and values beyond float16, queries below it", "bfloat16",
         decode([150, 9], 2, 2, 64, 16, splits=2, change=vast)),
    *mixed(
        decode,
        splits={"2 splits": 2, "3 splits": 3, "8 splits": 8, "6 splits": 6},
        **MIXED_DECODE,
    ),
)  # fmt: skip


# ---------------------------------------------------------------- reduce_splits
def reduce(
    requests: int,
    heads: int,
    splits: int,
    dim: int,
    empty: Sequence[int] = (),
    spread: float = 1.0,
    level: float = 0.0,
    first: int = 0,
    nan: bool = False,
    faint: float = 0.0,
    size: float = 1.0,
) -> Callable[[Draw, torch.dtype], Setup]:
    """Partial results whose splits `empty` are empty: their share is exp(-inf).

    `first`: in every second request the first so many splits are empty, too.

    Request 0 has no context at all if there are more requests than one and any split is empty.
    `level` is added to every lse. `nan`: one number of a split's average is NaN. `faint`: every
    split but the first has a mass so many e-foldings below its, and numbers as much larger. `size`
    multiplies all numbers.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        partial = draw.normal(requests, heads, splits, dim) * size
        lse = draw.normal(requests, heads, splits) * spread + level
        if faint:
            lse[:, :, 1:] -= faint
            partial *= (lse.amax(-1, keepdim=True) - lse).exp()[..., None]
        for split in empty:
            partial[:, :, split], lse[:, :, split] = 0.0, float("-inf")
        partial[1::2, :, :first], lse[1::2, :, :first] = 0.0, float("-inf")
        if empty and requests > 1:
            partial[0], lse[0] = 0.0, float("-inf")
        if nan:
            partial[1, 0, splits - 1, 3] = torch.nan
        problem = dict(partial=partial, lse=lse, output=unfilled(requests, heads, dim, dtype=dtype))
        axes = ("request", "head", "split", "dim")
        rules = {
            "partial": TensorRule(axes=axes),
            "lse": TensorRule(axes=axes[:3]),
            "output": TensorRule(axes=("request", "head", "dim")),
        }
        return problem, CaseRules(rules)

    return make


def long_reduce(splits: int, dim: int, each: int) -> Callable[[Draw, torch.dtype], Setup]:
    """So many rows that what has `each` numbers a row goes beyond the 2^32nd; the first and the
    last run. Values lie around 3: with `dim` 1 each average is judged alone, and one in which they
    cancel would be far off for its size.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = 2**32 // each + 2
        programs = (0, count - 1)
        partial = lazy_zeros(count, 1, splits, dim, dtype=torch.float32)
        lse = lazy_zeros(count, 1, splits, dtype=torch.float32)
        rows = torch.zeros(count, 1, 1, dtype=torch.bool)
        for row in programs:
            partial[row], lse[row] = 3 + draw.normal(1, splits, dim), draw.normal(1, splits)
            rows[row] = True
        axes, why = ("request", "head", "split", "dim"), "its program does not run here"
        rules = {
            "partial": TensorRule(readable=rows[..., None], axes=axes, why=why),
            "lse": TensorRule(readable=rows, axes=axes[:3], why=why),
            "output": TensorRule(writable=rows, required=rows, axes=("request", "head", "dim")),
        }
        output = lazy_zeros(count, 1, dim, dtype=dtype)
        problem = dict(partial=partial, lse=lse, output=output)
        return problem, CaseRules(rules, programs)

    return make


REDUCE_SPLITS = (
    Case("one", "one split", "float32", reduce(1, 1, 1, 32)),
    Case("two", "two splits", "float32", reduce(3, 2, 2, 64)),
    Case("many", "32 splits", "float16", reduce(2, 2, 32, 32)),
    Case("more-splits", "150 splits", "float32", reduce(1, 2, 150, 32)),
    Case("first-empty", "requests whose first splits are empty", "float32",
         reduce(5, 2, 7, 32, first=3)),
    Case("wide-head", "200 features", "float16", reduce(2, 2, 3, 200)),
    Case("hundreds", "150 requests", "bfloat16", reduce(150, 1, 2, 16)),
    Case("head-96", "5 heads of 96, 17 splits", "float16", reduce(2, 5, 17, 96)),
    Case("odd", "3 splits, 80 features", "bfloat16", reduce(2, 3, 3, 80)),
    Case("head-70", "5 splits, 70 features", "float32", reduce(2, 3, 5, 70)),
    Case("empty", "empty splits, and a request without context", "float32",
         reduce(3, 2, 8, 32, empty=(2, 6, 7))),
    Case("far", "splits whose masses differ by e^1000", "float32", reduce(2, 2, 4, 64, spread=1e3)),
    Case("abyss", "masses around e^-3,000,000", "float32",
         reduce(2, 2, 3, 16, empty=(1,), spread=50.0, level=-3e6)),
    Case("faint", "splits with hardly any mass, but large numbers", "float32",
         reduce(2, 2, 4, 32, faint=12.0)),
    Case("nan", "NaN in a split's average", "float32",
         reduce(2, 2, 3, 16, nan=True)),
    Case("wide", "128 features", "float16", reduce(2, 4, 4, 128)),
    Case("long", "more than 2^32 numbers", "float16", long_reduce(32, 128, 32 * 128)),
    Case("long-output", "more than 2^32 results", "bfloat16", long_reduce(2, 256, 256)),
    Case("long-masses", "more than 2^32 masses", "float32", long_reduce(128, 1, 128)),
    Case("traffic", "16 heads, 8 splits", "float32", reduce(2, 8, 8, 64), graded=True),
    Case("vast", "numbers beyond float16", "bfloat16", reduce(2, 2, 4, 64, size=VAST)),
    *mixed(
        reduce,
        requests={"one request": 1, "3 requests": 3},
        heads={"one head": 1, "4 heads": 4},
        splits={"one split": 1, "4 splits": 4, "5 splits": 5, "6 splits": 6},
        dim={"of 64": 64, "of 70": 70, "of 35": 35},
        level={"": 0.0, "large masses": 300.0},
    ),
)  # fmt: skip

CASES = {
    "paged_decode": PAGED_DECODE,
    "reduce_splits": REDUCE_SPLITS,
    "split_decode": SPLIT_DECODE,
}
