"""Cases for prefills: ragged requests, tokens computed before, windows, tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from labkit.kernels.cases.decode import FAR_ALONG, MIXED_DECODE
from labkit.kernels.cases.draw import Case, Draw, Setup, inside_wider, lazy_zeros, unfilled
from labkit.kernels.cases.mixed import mixed
from labkit.kernels.cases.pages import (
    BIG_CACHE,
    Pages,
    abyss,
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


def prefill(
    requests: Sequence[tuple[int | None, int]],
    group: int,
    kv_heads: int,
    dim: int,
    block_size: int,
    window: int | None = None,
    longer: int = 0,
    key_tile: int | None = None,
    scale: float | None = None,
    change: Callable[[Pages, dict[str, Any]], None] | None = None,
    **pages: Any,
) -> Callable[[Draw, torch.dtype], Setup]:
    """Requests of (new tokens, tokens computed before); None is drawn.

    The launch is told that the longest request has `longer` more tokens than it has, as a padded
    batch does. `key_tile` is used instead of the launcher's; `scale` as for `decode`.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        lens = [draw.integer(2, 2 * block_size + 2) if n is None else n for n, _ in requests]
        before = [computed for _, computed in requests]
        total = [n + computed for n, computed in zip(lens, before, strict=True)]
        first = [max(computed - (window or total[i]) + 1, 0) for i, computed in enumerate(before)]
        paged = Pages(draw, dtype, total, block_size, kv_heads, dim, first, **pages)
        heads, tokens = group * kv_heads, sum(lens)
        query = draw.normal(tokens, heads, dim, dtype=dtype)
        starts = [sum(lens[:i]) for i in range(len(lens) + 1)]
        problem: dict[str, Any] = dict(
            query=inside_wider(query, 0, 2 * kv_heads * dim),
            key_cache=paged.key,
            value_cache=paged.value,
            block_table=paged.table,
            query_start_loc=int32(starts),
            seq_lens=int32(total),
            output=unfilled(tokens, heads, dim, dtype=dtype),
            scale=scale or dim**-0.5,
            max_query_len=max(lens) + longer,
            window=window,
        )
        axes = ("token", "head", "dim")
        rules = paged.rules() | {"query": TensorRule(axes=axes), "output": TensorRule(axes=axes)}
        rules |= {name: TensorRule(axes=("request",)) for name in ("query_start_loc", "seq_lens")}
        if change:
            change(paged, problem)
        constants = {"KEY_TILE": key_tile} if key_tile else {}
        return problem, CaseRules(rules, constants=constants)

    return make


def behind(
    many: int, make: Callable[[Draw, torch.dtype], Setup]
) -> Callable[[Draw, torch.dtype], Setup]:
    """The requests of a problem, with `many` rows before theirs that are none of theirs."""

    def moved(draw: Draw, dtype: torch.dtype) -> Setup:
        problem, rules = make(draw, dtype)
        problem["query_start_loc"] += many
        count = many + len(problem["query"])
        mine = torch.arange(count)[:, None, None] >= many
        for name in ("query", "output"):
            few = problem[name]
            problem[name] = lazy_zeros(count, *few.shape[1:], dtype=dtype)
            problem[name][many:] = few
        query, output = rules.rule("query"), rules.rule("output")
        tensors = dict(rules.tensors)
        tensors["query"] = replace(query, readable=mine, why="it is no token of these requests")
        tensors["output"] = replace(output, writable=mine, required=mine)
        return problem, replace(rules, tensors=tensors)

    return moved


PAGED_PREFILL = (
    Case("one", "one token, nothing before it", "float32", prefill([(1, 0)], 1, 1, 32, 16),
         lone=True),
    Case("ragged", "requests that end before, at and after a block's border", "float32",
         prefill([(15, 0), (16, 0), (17, 0), (None, 0)], 2, 1, 32, 16)),
    Case("prefix", "tokens computed before: a prefix hit and a decode among prefills", "float32",
         prefill([(7, 16), (1, 33), (None, 5)], 2, 1, 32, 16)),
    Case("tiles", "31, 32 and 33 tokens", "float32",
         prefill([(31, 0), (32, 1), (33, 31)], 1, 1, 32, 16)),
    Case("thousands", "140,000 tokens before 3", "float32",
         prefill([(3, 140_000)], 1, 1, 16, 128, key_tile=256), long=True),
    Case("distant", "33 million tokens before 5, and a window of 40", "float32",
         prefill([(5, FAR_ALONG), (3, 60)], 2, 1, 16, 12, 40)),
    Case("block-100", "blocks of 100 tokens", "float32",
         prefill([(40, 180), (None, 0)], 2, 2, 32, 100)),
    Case("block-100-half", "blocks of 100 tokens", "float16",
         prefill([(40, 180), (7, 0)], 2, 1, 32, 100)),
    Case("block-600", "blocks of 600 tokens", "float32",
         prefill([(9, 600), (5, 0)], 2, 1, 16, 600)),
    Case("block-0", "block 0, a block like any other", "float16",
         prefill([(20, 30), (2, 0)], 2, 1, 32, 16, zero=True)),
    Case("one-for-all", "71 heads share one", "float32",
         prefill([(3, 9), (1, 0)], 71, 1, 16, 16)),
    Case("abyss", "logits around -3,000,000", "float32",
         prefill([(20, 30), (9, 0)], 2, 1, 16, 16, change=abyss)),
    Case("uneven", "one key weighs as much as thousands", "float32",
         prefill([(3, 2997), (1, 2899)], 2, 1, 16, 16, change=uneven), cancels=True),
    Case("apart", "tokens and heads whose scores lie around -128, 0 and 128", "float32",
         prefill([(20, 30), (9, 0)], 3, 1, 64, 16, change=apart)),
    Case("twins", "two requests of one new token, two of four, each pair of equal length",
         "float32", prefill([(1, 20), (1, 20), (4, 17), (4, 17)], 2, 3, 32, 16, 19)),
    Case("nan", "NaN in a value: it spoils this number of an average", "float32",
         prefill([(20, 30), (9, 0)], 2, 2, 32, 16, change=spoilt)),
    Case("wide-head", "200 features", "float32", prefill([(5, 0), (3, 4)], 1, 1, 200, 16)),
    Case("block-1", "blocks of one token", "float16", prefill([(5, 0), (None, 3)], 2, 2, 64, 1)),
    Case("odd-group", "3 heads share one, 80 features", "bfloat16",
         prefill([(None, 6), (9, 0)], 3, 2, 80, 4)),
    Case("wide", "4 heads share one, 128 features", "float16",
         prefill([(33, 0), (2, 40)], 4, 1, 128, 32)),
    Case("window-1", "each token sees only itself", "float32",
         prefill([(18, 15), (1, 0)], 2, 1, 32, 16, 1), lone=True),
    Case("window-odd", "a window of 7", "bfloat16", prefill([(20, 13), (None, 0)], 1, 2, 64, 4, 7)),
    Case("window-tiles", "a window so short that rows see nothing of their first tile", "float32",
         prefill([(40, 3), (17, 30)], 2, 1, 32, 16, 5, key_tile=16)),
    Case("edges", "a window that ends a tile before its last row does", "float32",
         prefill([(32, 0), (33, 1), (3, 31), (64, 0)], 1, 1, 16, 16, 31)),
    Case("shared", "requests that share their first blocks", "float16",
         prefill([(3, 8), (5, 9), (1, 12)], 2, 1, 32, 4, shared=2)),
    Case("padded", "a request without tokens, and more tiles than tokens", "float32",
         prefill([(None, 0), (0, 0)], 8, 1, 32, 16, longer=40)),
    Case("idle", "requests without new tokens between others", "float32",
         prefill([(0, 7), (5, 0), (0, 0), (0, 20), (3, 2)], 2, 1, 32, 16)),
    Case("far-logits", "logits of +-1e4", "float32",
         prefill([(24, 0)], 2, 1, 64, 16, change=far_logits)),
    Case("loud", "one key far longer than the others", "float32",
         prefill([(20, 20), (3, 2)], 2, 1, 32, 16, change=loud_key)),
    Case("far", "queries 2^30 elements apart", "float16",
         prefill([(2, 3), (3, 0), (1, 20)], 2, 1, 32, 16, change=far_queries)),
    Case("far-output", "behind 2^24 tokens, and more than 2^32 results", "float16",
         behind(2**24 + 1, prefill([(3, 4), (2, 0)], 2, 1, 128, 16))),
    Case(
        "far-table", "rows of the block table 2^30 elements apart", "float16",
        prefill([(1, 3), (1, 0), (2, 20), (1, 1), (1, 2), (1, 18)], 2, 1, 32, 16,
                change=far_table),
    ),
    Case("many-heads", "6 key/value heads of 96, blocks of 12", "float32",
         prefill([(9, 20), (None, 0)], 2, 6, 96, 12)),
    Case("long", "a few tokens behind 1,100", "float32",
         prefill([(6, 1100), (3, 0)], 1, 1, 32, 24)),
    Case("many-tiles", "4,300 tokens, each of which sees nine", "float32",
         prefill([(4300, 0)], 1, 1, 16, 16, 9)),
    Case(
        "hundreds", "1,060 requests, 120 of them with new tokens", "float16",
        prefill([(1 + i % 3, 5 * i % 11) for i in range(117)] + [(0, 0)] * 940 + [(2, 3)] * 3,
                1, 1, 16, 3),
    ),
    Case("other-scale", "scores times 0.4, not 1 / sqrt(dim)", "float32",
         prefill([(20, 9), (None, 0)], 2, 2, 64, 16, scale=0.4)),
    Case("large-scale", "scores times 1.5, a window; every head has its own key", "float16",
         prefill([(9, 5), (None, 0)], 1, 3, 32, 16, 6, scale=1.5)),
    Case("small-scale", "scores times 0.03, a window, 70 features", "bfloat16",
         prefill([(20, 9), (None, 3)], 3, 1, 70, 1, 7, scale=0.03)),
    Case("low-half", "logits around -110", "float16",
         prefill([(24, 9)], 2, 1, 64, 16, change=low_logits)),
    Case("high-logits", "logits around 110", "float32",
         prefill([(40, 30)], 1, 1, 64, 16, change=high_logits)),
    Case("leaning", "long keys whose scores hardly differ", "float16",
         prefill([(40, 35)], 2, 2, 80, 16, change=leaning)),
    Case("leaning-bf16", "long keys whose scores hardly differ", "bfloat16",
         prefill([(40, 35)], 2, 2, 80, 16, change=leaning)),
    Case("steady", "values that differ little, over many tiles", "float16",
         prefill([(12, 900)], 2, 1, 64, 16, change=steady), once=True),
    Case("steady-bf16", "values that differ little, over many tiles", "bfloat16",
         prefill([(12, 900)], 2, 1, 64, 16, change=steady), once=True),
    Case("even", "queries of zeros: averages", "float32",
         prefill([(None, 4)], 2, 1, 32, 16, change=zero_queries)),
    Case("wide-window", "a window of 33,500 tokens", "float32",
         prefill([(20, 35_000)], 1, 1, 16, 16, 33_500, key_tile=256)),
    Case("all-heads", "131 key/value heads", "float32", prefill([(2, 3)], 1, 131, 16, 4)),
    Case("deep-logits", "logits around -12,000", "bfloat16",
         prefill([(40, 30)], 1, 1, 16, 16, change=deep_logits)),
    Case("creeping", "scores that rise by less than a millionth a token", "float32",
         prefill([(3, 3000)], 1, 1, 16, 16, change=creeping)),
    Case("big-cache", "blocks behind the 2^32nd element", "float16",
         prefill([(5, 14), (2, 0)], 2, 2, 128, 16, num_blocks=BIG_CACHE // (16 * 2 * 128))),
    Case("many-blocks", "more than 2^24 blocks of one token", "float16",
         prefill([(3, 2), (2, 0)], 2, 2, 128, 1, num_blocks=BIG_CACHE // (2 * 128))),
    Case("low-logits", "rows whose first tile is empty, and whose logits are around -110",
         "float32", prefill([(24, 0)], 1, 1, 64, 16, 5, key_tile=16, change=low_logits)),
    Case("traffic-window", "192 tokens with a window of 32", "bfloat16",
         prefill([(192, 64)], 1, 1, 64, 16, 32), graded=True),
    Case("traffic-ragged", "requests of very different lengths", "bfloat16",
         prefill([(192, 0), (64, 0), (64, 0), (2, 62)], 1, 1, 64, 16), graded=True),
    Case("traffic", "256 tokens, nothing before them", "bfloat16",
         prefill([(256, 0)], 1, 1, 64, 16), graded=True),
    Case("faint", "many keys with hardly any weight", "float32",
         prefill([(3, 997), (2, 898)], 2, 2, 32, 16, change=faint)),
    Case("vast", "keys and values beyond float16, queries below it", "bfloat16",
         prefill([(40, 35), (9, 0)], 2, 2, 64, 16, change=vast)),
    *mixed(
        prefill,
        requests={
            "70 tokens behind 70": [(70, 70)],
            "5 tokens behind 9": [(5, 9)],
            "one token behind 80, and 70": [(1, 80), (70, 0)],
            "a request without context among three": [(9, 5), (0, 0), (70, 12)],
            "an idle request and a short one": [(0, 4), (3, 2)],
        },
        **{name: ways for name, ways in MIXED_DECODE.items() if name != "seq_lens"},
        longer={"": 0, "more tiles than tokens": 70},
    ),
)  # fmt: skip

CASES = {"paged_prefill": PAGED_PREFILL, "tiled_prefill": PAGED_PREFILL}
