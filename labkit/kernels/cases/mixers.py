"""Cases for layers that keep a state or latents: new requests, ragged contexts, odd sides, splits.

A state in a block without a request, or in a new request's, is NaN; so is a latent that no request
sees. Blocks of states lie apart, as there are the tails of convolutions between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import softplus

from labkit.kernels.cases.draw import (
    VAST,
    Case,
    Draw,
    Setup,
    far_apart,
    inside_wider,
    unfilled,
)
from labkit.kernels.cases.mixed import mixed
from labkit.kernels.cases.pages import (
    BIG_CACHE,
    Pages,
    abyss,
    deep_logits,
    far_logits,
    far_queries,
    far_table,
    high_logits,
    int32,
    leaning,
    low_logits,
    zero_queries,
)
from labkit.kernels.cases.rules import CaseRules, TensorRule

Change = Callable[[dict[str, Any]], None]
TENSORS = ("query", "key", "value", "states")


# ---------------------------------------------------------------- gdn_decode
def gdn(
    requests: int,
    heads: int,
    key_dim: int,
    value_dim: int,
    new: Sequence[int] = (),
    apart: Sequence[str] = TENSORS,
    far: Sequence[str] = (),
    key_size: float = 1.0,
    value_size: float = 1.0,
    change: Change | None = None,
) -> Callable[[Draw, torch.dtype], Setup]:
    """A token of each request; those in `new` have no state yet.

    `apart`: tensors whose rows are slices of wider ones; `far`: 2^30 elements from each other. Keys
    and values are `key_size` and `value_size` times as large as usual; states and queries are such
    that all terms still count.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        blocks = torch.tensor(draw.order(range(requests + 3))[:requests])
        is_new = torch.zeros(requests, dtype=torch.bool)
        is_new[list(new)] = True
        used, kept = (torch.zeros(requests + 3, 1, 1, 1, dtype=torch.bool) for _ in range(2))
        used[blocks] = True
        kept[blocks[~is_new]] = True
        states = unfilled(requests + 3, heads, key_dim, value_dim, dtype=torch.float32)
        old = draw.normal(requests, heads, key_dim, value_dim) * value_size / key_size
        states[blocks[~is_new]] = old[~is_new]
        sizes = {"query": key_size / value_size, "key": key_size}
        problem: dict[str, Any] = {
            name: draw.normal(requests, heads, key_dim) * size / key_dim**0.5
            for name, size in sizes.items()
        }
        problem["value"] = draw.normal(requests, heads, value_dim) * value_size
        problem = {name: x.to(dtype) for name, x in problem.items()} | {"states": states}
        for place, (name, rows) in enumerate(problem.items()):
            rows = inside_wider(rows, 3 + place, 5) if name in apart else rows
            problem[name] = far_apart(rows) if name in far else rows
        problem |= dict(
            g=-softplus(draw.normal(requests, heads)),
            beta=draw.normal(requests, heads).sigmoid(),
            block_ids=blocks,
            is_new=is_new,
            output=unfilled(requests, heads, value_dim, dtype=dtype),
        )
        if change:
            change(problem)
        axes = ("request", "head", "feature")
        rules = {name: TensorRule(axes=axes) for name in ("query", "key", "value", "output")}
        rules["states"] = TensorRule(
            kept, used, used, ("block", "head", "row", "column"),
            "it is a stranger's state: a block without a request, or of one that starts anew",
        )  # fmt: skip
        return problem, CaseRules(rules)

    return make


def extremes(problem: dict[str, Any]) -> None:
    """Heads that keep everything or nothing, and that correct everything or nothing."""
    problem["g"].flatten()[:4] = torch.tensor([0.0, -0.0, -60.0, -1e4])
    problem["beta"].flatten()[:4] = torch.tensor([1.0, 0.0, 1.0, 0.0])


def nan_each(problem: dict[str, Any]) -> None:
    """NaN in each tensor, of another request each."""
    for request, name in enumerate(("query", "key", "value", "g", "beta")):
        problem[name][request, 0] = torch.nan
    problem["states"][problem["block_ids"][5], 0, 1, 1] = torch.nan


GDN_DECODE = (
    Case("one", "one request, one head, a state of 2 rows and 3 columns", "float32",
         gdn(1, 1, 2, 3, apart=())),
    Case("two", "two requests, each with its own block", "float32", gdn(2, 1, 16, 16)),
    Case("heads", "5 heads", "float32", gdn(2, 5, 32, 32)),
    Case("new", "requests without a state yet", "float32", gdn(4, 2, 16, 32, new=(1, 2))),
    Case("all-new", "only new requests", "bfloat16", gdn(3, 2, 32, 64, new=(0, 1, 2))),
    Case("tail", "70 columns: the last tile is not full", "float32", gdn(2, 2, 32, 70)),
    Case("wide", "states of 128 rows and columns", "float16", gdn(2, 2, 128, 128)),
    Case("odd", "states of 35 rows and 67 columns", "bfloat16", gdn(3, 3, 35, 67, new=(0,))),
    Case("tall", "states of 300 rows", "float32", gdn(2, 1, 300, 20)),
    Case("broad", "states of 300 columns", "bfloat16", gdn(2, 1, 20, 300)),
    Case("extremes", "heads that keep or correct all, or nothing", "float32",
         gdn(2, 4, 32, 32, change=extremes)),
    Case("many-heads", "131 heads", "float16", gdn(2, 131, 8, 8)),
    Case("hundreds", "600 requests", "float16", gdn(600, 1, 4, 5, new=(7, 300))),
    Case("nan", "NaN in each of the tensors, of another request each", "float32",
         gdn(7, 2, 16, 16, change=nan_each)),
    Case("nan-half", "NaN in each of the tensors, of another request each", "float16",
         gdn(7, 2, 32, 40, change=nan_each)),
    Case("vast-values", "values beyond float16, queries below it", "bfloat16",
         gdn(3, 2, 32, 64, value_size=VAST)),
    Case("vast-keys", "keys beyond float16, states far smaller", "bfloat16",
         gdn(3, 2, 32, 64, key_size=VAST)),
    Case("far", "queries, keys and values 2^30 elements apart", "float16",
         gdn(6, 2, 32, 32, far=("query", "key", "value"))),
    Case("far-states", "states 2^30 elements apart", "float32", gdn(6, 2, 32, 32, far=("states",))),
    Case("traffic", "states of 128 rows and columns", "bfloat16",
         gdn(2, 2, 128, 128, apart=()), graded=True),
    *mixed(
        gdn,
        requests={"one request": 1, "3 requests": 3},
        heads={"one head": 1, "4 heads": 4},
        key_dim={"32 rows": 32, "35 rows": 35, "70 rows": 70},
        value_dim={"32 columns": 32, "35 columns": 35, "70 columns": 70},
        new={"": (), "a new one": (0,)},
        apart={"slices": TENSORS, "slices of keys": ("query", "key"), "of values": ("value",)},
    ),
)  # fmt: skip


# ---------------------------------------------------------------- mla_decode
def mla(
    seq_lens: Sequence[int | None],
    heads: int,
    latent: int,
    rope: int,
    block_size: int,
    splits: int = 1,
    scale: float | None = None,
    strided: bool = True,
    change: Callable[[Pages, dict[str, Any]], None] | None = None,
    order: bool = False,
    **pages: Any,
) -> Callable[[Draw, torch.dtype], Setup]:
    """One new token a request; a length of None is drawn. `scale`: None = 1 / sqrt(width).

    With `order` programs start in an order of requests that is drawn.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        lens = [draw.integer(2, 3 * block_size + 1) if n is None else n for n in seq_lens]
        width = latent + rope
        paged = Pages(draw, dtype, lens, block_size, 1, width, **pages)
        query = draw.normal(len(lens), heads, width, dtype=dtype)
        shape = (len(lens), heads, splits)
        problem: dict[str, Any] = dict(
            query=inside_wider(query, 3, 5) if strided else query,
            latents=paged.key[:, :, 0],
            block_table=paged.table,
            seq_lens=int32(lens),
            scale=scale or width**-0.5,
            output=unfilled(*shape, latent, dtype=torch.float32 if splits > 1 else dtype),
            lse=unfilled(*shape, dtype=torch.float32),
        )
        if change:
            change(paged, problem)
        rules = paged.rules()
        cache = rules.pop("key_cache")
        assert cache.readable is not None
        axes = ("request", "head", "split", "feature")
        ordered = {}
        if order:
            problem["order"] = torch.tensor(draw.order(range(len(lens))))
            ordered["order"] = TensorRule(axes=("place",))
        return problem, CaseRules(ordered | {
            "latents": TensorRule(cache.readable[..., 0], axes=("block", "offset", "feature"),
                                  why=cache.why),
            "block_table": rules["block_table"],
            "seq_lens": TensorRule(axes=("request",)),
            "query": TensorRule(axes=("request", "head", "feature")),
            "output": TensorRule(axes=axes),
            "lse": TensorRule(axes=axes[:3]),
        })  # fmt: skip

    return make


def nan_latent(paged: Pages, problem: dict[str, Any]) -> None:
    """NaN in a latent, where it spoils its request; and in a query."""
    paged.key[paged.place(0, 1)][0, 1] = torch.nan
    problem["query"][1, 0, 2] = torch.nan


def vast_latents(paged: Pages, problem: dict[str, Any]) -> None:
    """Latents beyond float16, and queries below it; scores are as always."""
    problem["query"] /= VAST
    paged.key[paged.slots] *= VAST


MLA_DECODE = (
    Case("one", "one token of context", "float32", mla([1], 1, 16, 16, 16)),
    Case("ragged", "contexts that end before, at and after a block's border", "float32",
         mla([1, 15, 16, 17, None], 4, 32, 16, 16)),
    Case("tiles", "contexts around 16, 32 and 64 tokens", "float32",
         mla([15, 16, 17, 31, 33, 65], 4, 32, 16, 16)),
    Case("heads", "40 heads: more than a tile", "float16", mla([9, None], 40, 32, 16, 16)),
    Case("odd", "17 heads, 35 features and 9", "bfloat16", mla([33, None], 17, 35, 9, 4)),
    Case("wide", "latents of 512 and 64, 16 heads", "bfloat16", mla([40, None], 16, 512, 64, 16)),
    Case("wide-float", "latents of 512 and 64", "float32", mla([20, None], 5, 512, 64, 16)),
    Case("wide-half", "latents of 512 and 64, 130 heads", "float16",
         mla([20], 130, 512, 64, 16, splits=2)),
    Case("block-1", "blocks of one token", "float16", mla([1, 5, None], 4, 64, 16, 1)),
    Case("block-100", "blocks of 100 tokens", "float32", mla([250, None], 2, 32, 16, 100)),
    Case("block-0", "block 0, a block like any other", "float16",
         mla([50, 3], 2, 32, 16, 16, zero=True)),
    Case("inert", "rows without a request", "float32", mla([0, None, 0], 2, 32, 16, 16)),
    Case("shared", "requests that share their first blocks", "float16",
         mla([9, 14, 19], 2, 32, 16, 4, shared=2)),
    Case("splits", "contexts around a tile in 3 splits", "float32",
         mla([31, 32, 33, 1, None], 4, 32, 16, 16, splits=3)),
    Case("many-splits", "39 splits, half of which are empty", "float32",
         mla([310, 33], 2, 16, 16, 16, splits=39)),
    Case("far-logits", "logits of +-1e4", "float32", mla([40, 11], 2, 48, 16, 16,
                                                          change=far_logits)),
    Case("low-logits", "logits around -110", "float32",
         mla([70, 9], 2, 48, 16, 16, change=low_logits)),
    Case("high-logits", "logits around 110", "float32",
         mla([70, 9], 2, 48, 16, 16, change=high_logits)),
    Case("deep-logits", "logits around -12,000", "bfloat16",
         mla([40, 9], 2, 12, 4, 16, change=deep_logits)),
    Case("abyss", "logits around -3,000,000", "float32",
         mla([40, 9], 2, 12, 4, 16, scale=0.25, change=abyss)),
    Case("leaning", "long keys whose scores hardly differ", "float16",
         mla([40, 75], 2, 64, 16, 16, change=leaning)),
    Case("even", "queries of zeros: an average", "float32",
         mla([None, 35], 2, 32, 16, 16, change=zero_queries)),
    Case("long", "a context of 1,300 tokens beside a short one", "float32",
         mla([1300, 3], 1, 32, 16, 24)),
    Case("hundreds", "600 requests", "float16",
         mla([1 + (5 * i) % 17 for i in range(600)], 1, 16, 4, 3)),
    Case("nan", "NaN in a latent and in a query", "float32",
         mla([40, 9], 2, 32, 16, 16, change=nan_latent)),
    Case("vast", "latents beyond float16, queries below it", "bfloat16",
         mla([70, 9], 2, 64, 16, 16, change=vast_latents)),
    Case("far", "queries 2^30 elements apart", "float16",
         mla([7, 3, 20, 1, 2, 5], 2, 32, 16, 16, change=far_queries)),
    Case("far-table", "rows of the block table 2^30 elements apart", "float16",
         mla([7, 3, 20, 1, 2, 5], 2, 32, 16, 16, change=far_table)),
    Case("big-cache", "blocks behind the 2^32nd element", "float16",
         mla([18, 3], 2, 112, 16, 16, num_blocks=BIG_CACHE // (16 * 128))),
    Case("many-blocks", "more than 2^24 blocks of one token", "float16",
         mla([5, 3], 2, 112, 16, 1, num_blocks=BIG_CACHE // 128)),
    Case("order", "programs start in another order than requests stand in; 3 tiles of heads",
         "float32", mla([1, 40, 0, None, 70, 16], 70, 16, 16, 16, order=True),
         optional="order_ptr"),
    Case("order-splits", "an order, 3 splits, 40 heads", "bfloat16",
         mla([5, 13, 14, 100, None], 40, 32, 16, 4, splits=3, order=True), optional="order_ptr"),
    Case("order-far", "an order of queries 2^30 elements apart", "float16",
         mla([7, 3, 20, 1, 2, 5], 2, 32, 16, 16, change=far_queries, order=True),
         optional="order_ptr"),
    Case("traffic", "512 tokens of context, 16 heads", "bfloat16",
         mla([512], 16, 128, 64, 16), graded=True),
    *mixed(
        mla,
        seq_lens={"one request of 70 tokens": [70], "requests of 9 and 33": [9, 33],
                  "an inert row": [40, 0, 17]},
        heads={f"{heads} heads": heads for heads in (5, 16, 18, 33, 34, 64)},
        latent={"latents of 32": 32, "of 35": 35, "of 70": 70},
        rope={"16 rotated": 16, "9 rotated": 9, "6 rotated": 6},
        block_size={"blocks of 16": 16, "blocks of 5": 5, "blocks of 12": 12},
        splits={"": 1, "2 splits": 2, "3 splits": 3},
        scale={"": None, "scores times 0.3": 0.3},
    ),
)  # fmt: skip

CASES = {"gdn_decode": GDN_DECODE, "mla_decode": MLA_DECODE}
