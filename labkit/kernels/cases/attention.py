"""Cases for paged attention: block tables, ragged lengths, shared heads, windows, splits.

Every cache here is NaN wherever no visible token lies, and every block table ends in an impossible
block: a kernel that looks there and "masks it later" is found out twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.cases.draw import (
    Case,
    Draw,
    Setup,
    far_apart,
    inside_wider,
    lazy_zeros,
    unfilled,
)
from labkit.kernels.cases.rules import CaseRules, TensorRule

IMPOSSIBLE_BLOCK = 2**31 - 1
CACHE_AXES = ("block", "offset", "head", "dim")
BIG_CACHE = 2**32 + 2**16  # elements: 32 bits do not count them, signed or not


# ---------------------------------------------------------------- pages
class Pages:
    """Key and value caches with the contexts of some requests in them, in shuffled blocks.

    Args:
        seq_lens: tokens of each request.
        first_visible: the first position of each that its queries see; None = 0.
        shared: how many leading blocks all requests have in common.
        num_blocks: None = a few more than are needed. More than 2^31 elements are allocated lazily,
            and the blocks in use lie at the end.
    """

    def __init__(
        self,
        draw: Draw,
        dtype: torch.dtype,
        seq_lens: Sequence[int],
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        first_visible: Sequence[int] | None = None,
        shared: int = 0,
        num_blocks: int | None = None,
    ) -> None:
        self.seq_lens, self.block_size, self.draw = list(seq_lens), block_size, draw
        needs = [-(-length // block_size) for length in seq_lens]
        total = num_blocks or sum(needs) + 4
        free = draw.order(range(max(total - sum(needs) - 3, 1), total))
        common, self.width = [free.pop() for _ in range(shared)], max(*needs, 1)
        self.table = torch.full((len(needs), self.width + 2), IMPOSSIBLE_BLOCK, dtype=torch.int32)
        for row, need in enumerate(needs):
            blocks = (common + [free.pop() for _ in range(max(need - shared, 0))])[:need]
            self.table[row, :need] = torch.tensor(blocks, dtype=torch.int32)
        self.table = self.table[:, : self.width]
        self.slots = torch.zeros(total, block_size, dtype=torch.bool)
        for row, length in enumerate(seq_lens):
            for position in range(first_visible[row] if first_visible else 0, length):
                self.slots[self.place(row, position)] = True
        self.key = self._cache(draw, dtype, total, num_kv_heads, head_dim)
        self.value = self._cache(draw, dtype, total, num_kv_heads, head_dim)

    def _cache(self, draw: Draw, dtype: torch.dtype, total: int, heads: int, dim: int) -> Tensor:
        shape = (total, self.block_size, heads, dim)
        big = torch.Size(shape).numel() > 2**31
        cache = lazy_zeros(*shape, dtype=dtype) if big else unfilled(*shape, dtype=dtype)
        cache[self.slots] = draw.normal(int(self.slots.sum()), heads, dim, dtype=dtype)
        return cache

    def place(self, row: int, position: int) -> tuple[int, int]:
        """Block and offset of a request's position."""
        return int(self.table[row, position // self.block_size]), position % self.block_size

    def rules(self) -> dict[str, TensorRule]:
        """Slots are readable where a visible token lies, table entries where a block is."""
        cache = TensorRule(
            readable=self.slots[:, :, None, None],
            axes=CACHE_AXES,
            why="no token that this kernel may see lies in this slot",
        )
        table = TensorRule(
            readable=self.table != IMPOSSIBLE_BLOCK,
            axes=("request", "entry"),
            why="the request has no block there; entries past its last block are garbage",
        )
        return {"key_cache": cache, "value_cache": cache, "block_table": table}


def int32(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


# ---------------------------------------------------------------- store_kv
def store(
    tokens: int | None,
    heads: int,
    dim: int,
    block_size: int,
    padding: int = 0,
    strided: bool = False,
    num_blocks: int | None = None,
    far: bool = False,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`tokens` new tokens (None: a prime number) into slots in any order; -1 for `padding` more.

    With `far` new tokens lie 2^30 elements apart.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        stored = draw.prime() if tokens is None else tokens
        count = stored + padding
        blocks = num_blocks or -(-stored // block_size) + 2
        last = blocks * block_size
        slots = draw.order(range(last - stored - block_size, last))[:stored]
        if slots and not num_blocks:
            slots[draw.integer(0, stored - 1)] = 0  # a slot like any other
        mapping = torch.full((count,), -1, dtype=torch.int64)
        mapping[draw.order(range(count))[:stored]] = torch.tensor(slots, dtype=torch.int64)
        key, value = (draw.normal(count, heads, dim, dtype=dtype) for _ in range(2))
        if stored:  # what a copy must keep and arithmetic does not
            key.view(-1)[:3] = torch.tensor([float("inf"), -0.0, torch.finfo(dtype).tiny / 4])
        row = heads * dim
        if strided:
            key, value = inside_wider(key, 2 * row, row), inside_wider(value, 3 * row, row)
        if far:
            key, value = far_apart(key), far_apart(value)
        shape = (blocks, block_size, heads, dim)
        if num_blocks:
            caches = [lazy_zeros(*shape, dtype=dtype) for _ in range(2)]
        else:
            caches = [draw.normal(*shape, dtype=dtype) for _ in range(2)]
        required = torch.zeros(last, dtype=torch.bool)
        required[slots] = True
        required = required.view(blocks, block_size, 1, 1)
        problem = dict(
            key=key, value=value, key_cache=caches[0], value_cache=caches[1], slot_mapping=mapping
        )
        rule = TensorRule(
            readable=torch.zeros(1, 1, 1, 1, dtype=torch.bool),
            writable=required,
            required=required,
            axes=CACHE_AXES,
            why="storing needs nothing of what is in the cache",
        )
        new = TensorRule(
            readable=(mapping >= 0)[:, None, None],
            axes=("token", "head", "dim"),
            why="its slot is -1, so this token is not stored",
        )
        return problem, CaseRules(
            {"key_cache": rule, "value_cache": rule, "key": new, "value": new}
        )

    return make


STORE_KV = (
    Case("one", "one token of one head", "float32", store(1, 1, 32, 16)),
    Case("block", "a whole block and a token", "float32", store(17, 2, 64, 16)),
    Case("prime", "a row that is no power of two", "bfloat16", store(None, 3, 80, 16)),
    Case("padding", "slots of -1 in between", "float16", store(7, 2, 64, 16, padding=5)),
    Case("nothing", "only slots of -1", "float32", store(0, 2, 32, 16, padding=4)),
    Case("sliced", "keys and values are slices of qkv", "float16", store(6, 2, 32, 4, 2, True)),
    Case("block-1", "blocks of one token", "bfloat16", store(None, 1, 128, 1)),
    Case("far", "tokens 2^30 elements apart", "float16", store(6, 1, 32, 4, far=True)),
    Case("odd-block", "blocks of 12 tokens, 5 heads of 96", "bfloat16", store(31, 5, 96, 12)),
    Case("many", "300 tokens", "float16", store(300, 1, 16, 7, padding=3)),
    Case("block-32", "blocks of 32 tokens, 8 heads", "float32", store(33, 8, 32, 32)),
    Case(
        "big-cache", "more than 2^32 elements a cache", "float16",
        store(5, 8, 128, 16, num_blocks=BIG_CACHE // (16 * 8 * 128)),
    ),
    Case("traffic", "64 tokens of 4 heads", "bfloat16", store(64, 4, 128, 16), graded=True),
)  # fmt: skip


# ---------------------------------------------------------------- decode
def decode(
    seq_lens: Sequence[int | None],
    group: int,
    kv_heads: int,
    dim: int,
    block_size: int,
    window: int | None = None,
    splits: int = 0,
    scale: float | None = None,
    change: Callable[[Pages, dict[str, Any]], None] | None = None,
    **pages: Any,
) -> Callable[[Draw, torch.dtype], Setup]:
    """One new token a request; a length of None is drawn. With `splits` the split-KV problem.

    `scale`: None = what models have, 1 / sqrt(dim).
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
        return problem, CaseRules(rules)

    return make


def far_logits(paged: Pages, problem: dict[str, Any]) -> None:
    """Logits from -1e4 to 1e4 in steps so wide that one key has all the weight of its query.

    Every visible key is a multiple of one direction, every query the same long vector.
    """
    dim = paged.key.shape[-1]
    direction = torch.ones(dim) / dim**0.5
    scale = 1e4 / (problem["scale"] * 100)
    problem["query"].copy_((direction * scale).expand(problem["query"].shape))
    for row, length in enumerate(paged.seq_lens):
        order = [(7 * position + 3) % max(length, 1) for position in range(length)]
        for position, level in enumerate(order):
            key = direction * (200 * (level + 1) / length - 100)
            place = paged.place(row, position)
            if paged.slots[place]:
                paged.key[place] = key.to(paged.key.dtype)


def logits_around(level: float) -> Callable[[Pages, dict[str, Any]], None]:
    """Logits around a number that float32's exp does not survive: around -110 it gives 0, around
    110 infinity. Only a true maximum can be subtracted.

    Every query is the same vector, and every visible key is moved along it. Keys are multiples of
    1/64, so that float32 sums them without rounding.
    """

    def change(paged: Pages, problem: dict[str, Any]) -> None:
        dim = paged.key.shape[-1]
        direction = torch.ones(dim) / dim**0.5
        problem["query"].copy_((direction / problem["scale"]).expand(problem["query"].shape))
        moved = paged.key[paged.slots].float() + level * direction
        paged.key[paged.slots] = ((moved * 64).round() / 64).to(paged.key.dtype)

    return change


low_logits, high_logits = logits_around(-110.0), logits_around(110.0)


def leaning(paged: Pages, problem: dict[str, Any]) -> None:
    """Scores around 40 that hardly differ, of long keys nearly at right angles to their query.

    All queries of a request are the same. What rounds a query or a score to half precision moves
    weight from key to key.
    """
    requests = len(paged.seq_lens)
    starts = problem.get("query_start_loc", torch.arange(requests + 1)).tolist()
    for row, length in enumerate(paged.seq_lens):
        tokens = problem["query"][starts[row] : starts[row + 1]]
        tokens[:] = 2 * tokens[0, 0].clone()
        query = tokens[0, 0].double()
        for position in range(length):
            place = paged.place(row, position)
            key = paged.key[place].double()
            scores = 40 + key[:, 0]
            key *= 6
            along = scores / problem["scale"] - key @ query
            key += along[:, None] * query / query.square().sum()
            paged.key[place] = key.to(paged.key.dtype)


def steady(paged: Pages, problem: dict[str, Any]) -> None:
    """Values around 3: what weights lose by rounding averages out over many keys, and what is
    left of the error is how often the sum itself was rounded.
    """
    paged.value[paged.slots] = (3 + paged.value[paged.slots].float() / 4).to(paged.value.dtype)


def loud_key(paged: Pages, problem: dict[str, Any]) -> None:
    """One key of each request, at a place that is drawn, 20 times as long as the others."""
    for row, length in enumerate(paged.seq_lens):
        if length:
            paged.key[paged.place(row, paged.draw.integer(0, length - 1))] *= 20


def far_queries(paged: Pages, problem: dict[str, Any]) -> None:
    """Queries 2^30 elements apart."""
    problem["query"] = far_apart(problem["query"])


def far_table(paged: Pages, problem: dict[str, Any]) -> None:
    """Rows of the block table 2^30 elements apart."""
    problem["block_table"] = far_apart(problem["block_table"])


def zero_queries(paged: Pages, problem: dict[str, Any]) -> None:
    """Every score is 0: each visible value counts the same."""
    problem["query"].zero_()


PAGED_DECODE = (
    Case("one", "one token of context", "float32", decode([1], 1, 1, 32, 16)),
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
    Case("inert", "rows without a request", "float32", decode([0, None, 0], 2, 1, 32, 16)),
    Case(
        "window-1", "each token sees only itself", "float32",
        decode([1, 16, 17], 2, 1, 32, 16, 1),
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
        "one-for-all", "20 heads share one", "float32",
        decode([17, None], 20, 1, 32, 16),
    ),
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
    Case(
        "low-logits", "logits around -110", "float32",
        decode([70, 9], 2, 1, 64, 16, change=low_logits),
    ),
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
        "big-cache", "blocks behind the 2^32nd element", "float16",
        decode([18, 3], 2, 2, 128, 16, num_blocks=BIG_CACHE // (16 * 2 * 128)),
    ),
    *(
        Case(
            f"traffic-{group}", f"256 tokens of context, {group} heads share one", "bfloat16",
            decode([256], group, 1, 64, 16), graded=True,
        )
        for group in (1, 2, 4, 8)
    ),
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
        "one-for-all", "20 heads share one", "bfloat16",
        decode([70, None], 20, 1, 32, 16, splits=2),
    ),
    Case(
        "long", "1,500 tokens for 16 splits", "float32",
        decode([1500, 40], 1, 1, 32, 24, splits=16),
    ),
    Case(
        "other-scale", "scores times 0.4, not 1 / sqrt(dim)", "float32",
        decode([70, None], 2, 2, 64, 16, splits=2, scale=0.4),
    ),
    Case(
        "low-logits", "logits around -110", "float32",
        decode([100, 9], 2, 1, 64, 16, splits=2, change=low_logits),
    ),
    Case(
        "high-logits", "logits around 110", "float32",
        decode([100, 9], 2, 1, 64, 16, splits=2, change=high_logits),
    ),
    Case(
        "steady", "values that differ little, over many tiles", "float16",
        decode([900, 700], 4, 1, 64, 16, splits=2, change=steady), once=True,
    ),
    Case(
        "traffic", "512 tokens of context in two splits, 4 heads share one", "bfloat16",
        decode([512], 4, 1, 64, 16, splits=2), graded=True,
    ),
)  # fmt: skip


# ---------------------------------------------------------------- reduce_splits
def reduce(
    requests: int, heads: int, splits: int, dim: int, empty: Sequence[int] = (), spread: float = 1.0
) -> Callable[[Draw, torch.dtype], Setup]:
    """Partial results whose splits `empty` are empty: their share is exp(-inf).

    Request 0 has no context at all if there are more requests than one and any split is empty.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        partial = draw.normal(requests, heads, splits, dim)
        lse = draw.normal(requests, heads, splits) * spread
        for split in empty:
            partial[:, :, split], lse[:, :, split] = 0.0, float("-inf")
        if empty and requests > 1:
            partial[0], lse[0] = 0.0, float("-inf")
        problem = dict(partial=partial, lse=lse, output=unfilled(requests, heads, dim, dtype=dtype))
        axes = ("request", "head", "split", "dim")
        rules = {
            "partial": TensorRule(axes=axes),
            "lse": TensorRule(axes=axes[:3]),
            "output": TensorRule(axes=("request", "head", "dim")),
        }
        return problem, CaseRules(rules)

    return make


def long_reduce(splits: int, dim: int) -> Callable[[Draw, torch.dtype], Setup]:
    """So many rows that the last begins behind the 2^32nd number; the first and the last run."""

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = 2**32 // (splits * dim) + 2
        programs = (0, count - 1)
        partial = lazy_zeros(count, 1, splits, dim, dtype=torch.float32)
        lse = lazy_zeros(count, 1, splits, dtype=torch.float32)
        rows = torch.zeros(count, 1, 1, dtype=torch.bool)
        for row in programs:
            partial[row], lse[row] = draw.normal(1, splits, dim), draw.normal(1, splits)
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
    Case("hundreds", "150 requests", "bfloat16", reduce(150, 1, 2, 16)),
    Case("head-96", "5 heads of 96, 17 splits", "float16", reduce(2, 5, 17, 96)),
    Case("odd", "3 splits, 80 features", "bfloat16", reduce(2, 3, 3, 80)),
    Case("empty", "empty splits, and a request without context", "float32",
         reduce(3, 2, 8, 32, empty=(2, 6, 7))),
    Case("far", "splits whose masses differ by e^1000", "float32", reduce(2, 2, 4, 64, spread=1e3)),
    Case("wide", "128 features", "float16", reduce(2, 4, 4, 128)),
    Case("long", "more than 2^32 numbers", "float16", long_reduce(32, 128)),
    Case("traffic", "16 heads, 8 splits", "float32", reduce(2, 8, 8, 64), graded=True),
)  # fmt: skip


# ---------------------------------------------------------------- paged_prefill
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


PAGED_PREFILL = (
    Case("one", "one token, nothing before it", "float32", prefill([(1, 0)], 1, 1, 32, 16)),
    Case(
        "ragged", "requests that end before, at and after a block's border", "float32",
        prefill([(15, 0), (16, 0), (17, 0), (None, 0)], 2, 1, 32, 16),
    ),
    Case(
        "prefix", "tokens computed before: a prefix hit and a decode among prefills", "float32",
        prefill([(7, 16), (1, 33), (None, 5)], 2, 1, 32, 16),
    ),
    Case(
        "tiles", "31, 32 and 33 tokens", "float32",
        prefill([(31, 0), (32, 1), (33, 31)], 1, 1, 32, 16),
    ),
    Case("block-1", "blocks of one token", "float16", prefill([(5, 0), (None, 3)], 2, 2, 64, 1)),
    Case(
        "odd-group", "3 heads share one, 80 features", "bfloat16",
        prefill([(None, 6), (9, 0)], 3, 2, 80, 4),
    ),
    Case(
        "wide", "4 heads share one, 128 features", "float16",
        prefill([(33, 0), (2, 40)], 4, 1, 128, 32),
    ),
    Case(
        "window-1", "each token sees only itself", "float32",
        prefill([(18, 15), (1, 0)], 2, 1, 32, 16, 1),
    ),
    Case("window-odd", "a window of 7", "bfloat16", prefill([(20, 13), (None, 0)], 1, 2, 64, 4, 7)),
    Case(
        "window-tiles", "a window so short that rows see nothing of their first tile", "float32",
        prefill([(40, 3), (17, 30)], 2, 1, 32, 16, 5, key_tile=16),
    ),
    Case(
        "shared", "requests that share their first blocks", "float16",
        prefill([(3, 8), (5, 9), (1, 12)], 2, 1, 32, 4, shared=2),
    ),
    Case(
        "padded", "a request without tokens, and more tiles than tokens", "float32",
        prefill([(None, 0), (0, 0)], 8, 1, 32, 16, longer=40),
    ),
    Case(
        "far-logits", "logits of +-1e4", "float32",
        prefill([(24, 0)], 2, 1, 64, 16, change=far_logits),
    ),
    Case(
        "loud", "one key far longer than the others", "float32",
        prefill([(20, 20), (3, 2)], 2, 1, 32, 16, change=loud_key),
    ),
    Case(
        "far", "queries 2^30 elements apart", "float16",
        prefill([(2, 3), (3, 0), (1, 20)], 2, 1, 32, 16, change=far_queries),
    ),
    Case(
        "far-table", "rows of the block table 2^30 elements apart", "float16",
        prefill([(1, 3), (1, 0), (2, 20), (1, 1), (1, 2), (1, 18)], 2, 1, 32, 16,
                change=far_table),
    ),
    Case(
        "many-heads", "6 key/value heads of 96, blocks of 12", "float32",
        prefill([(9, 20), (None, 0)], 2, 6, 96, 12),
    ),
    Case(
        "long", "a few tokens behind 1,100", "float32",
        prefill([(6, 1100), (3, 0)], 1, 1, 32, 24),
    ),
    Case(
        "many-tiles", "2,100 tokens, each of which sees nine", "float32",
        prefill([(2100, 0)], 1, 1, 16, 16, 9),
    ),
    Case(
        "hundreds", "120 requests of a few tokens", "float16",
        prefill([(1 + i % 3, (5 * i) % 11) for i in range(120)], 1, 1, 16, 3),
    ),
    Case(
        "other-scale", "scores times 0.4, not 1 / sqrt(dim)", "float32",
        prefill([(20, 9), (None, 0)], 2, 2, 64, 16, scale=0.4),
    ),
    Case(
        "high-logits", "logits around 110", "float32",
        prefill([(40, 30)], 1, 1, 64, 16, change=high_logits),
    ),
    Case(
        "leaning", "long keys whose scores hardly differ", "float16",
        prefill([(40, 35)], 2, 2, 80, 16, change=leaning),
    ),
    Case(
        "leaning-bf16", "long keys whose scores hardly differ", "bfloat16",
        prefill([(40, 35)], 2, 2, 80, 16, change=leaning),
    ),
    Case(
        "steady", "values that differ little, over many tiles", "float16",
        prefill([(12, 900)], 2, 1, 64, 16, change=steady), once=True,
    ),
    Case(
        "steady-bf16", "values that differ little, over many tiles", "bfloat16",
        prefill([(12, 900)], 2, 1, 64, 16, change=steady), once=True,
    ),
    Case(
        "even", "queries of zeros: averages", "float32",
        prefill([(None, 4)], 2, 1, 32, 16, change=zero_queries),
    ),
    Case(
        "big-cache", "blocks behind the 2^32nd element", "float16",
        prefill([(5, 14), (2, 0)], 2, 2, 128, 16, num_blocks=BIG_CACHE // (16 * 2 * 128)),
    ),
    Case(
        "low-logits", "rows whose first tile is empty, and whose logits are around -110", "float32",
        prefill([(24, 0)], 1, 1, 64, 16, 5, key_tile=16, change=low_logits),
    ),
    Case(
        "traffic-window", "192 tokens with a window of 32", "bfloat16",
        prefill([(192, 64)], 1, 1, 64, 16, 32), graded=True,
    ),
    Case(
        "traffic-ragged", "requests of very different lengths", "bfloat16",
        prefill([(192, 0), (64, 0), (64, 0), (2, 62)], 1, 1, 64, 16), graded=True,
    ),
    Case(
        "traffic", "256 tokens, nothing before them", "bfloat16",
        prefill([(256, 0)], 1, 1, 64, 16), graded=True,
    ),
)  # fmt: skip

CASES = {
    "store_kv": STORE_KV,
    "paged_decode": PAGED_DECODE,
    "reduce_splits": REDUCE_SPLITS,
    "split_decode": SPLIT_DECODE,
    "paged_prefill": PAGED_PREFILL,
}
