"""Cases for storing keys and values: slots in any order, slots of -1, rows far apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from labkit.kernels.cases.draw import (
    Case,
    Draw,
    Setup,
    far_apart,
    inside_wider,
    lazy_zeros,
    unfilled,
)
from labkit.kernels.cases.mixed import mixed
from labkit.kernels.cases.pages import BIG_CACHE, stored_rules
from labkit.kernels.cases.rules import CaseRules


def store(
    tokens: int | None,
    heads: int,
    dim: int,
    block_size: int,
    padding: int = 0,
    slices: Sequence[str] = ("key", "value"),
    num_blocks: int | None = None,
    far: bool = False,
    more: int = 0,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`tokens` new tokens (None: a prime number) into slots in any order; -1 for `padding` more.

    Those in `slices` are slices of qkv, whose rows have `more` elements. With `far` new tokens lie
    2^30 elements apart.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        slots, mapping, blocks = places(draw, tokens, padding, block_size, num_blocks)
        count, stored = len(mapping), len(slots)
        key, value = (draw.normal(count, heads, dim, dtype=dtype) for _ in range(2))
        if stored:  # what a copy must keep and arithmetic does not
            tiny = torch.finfo(dtype).tiny / 4
            odd = torch.tensor([float("inf"), -0.0, tiny, float("nan"), -float("inf")])
            row = int((mapping >= 0).nonzero()[0])
            key[row].view(-1)[:5], value[row].view(-1)[-5:] = odd, odd
        row = heads * dim
        if "key" in slices:
            key = inside_wider(key, 2 * row, row + more)
        if "value" in slices:
            value = inside_wider(value, 3 * row, row + more)
        if far:
            key, value = far_apart(key), far_apart(value)
        shape = (blocks, block_size, heads, dim)
        if num_blocks:
            caches = [lazy_zeros(*shape, dtype=dtype) for _ in range(2)]
        else:
            caches = [draw.normal(*shape, dtype=dtype) for _ in range(2)]
        problem = dict(
            key=key, value=value, key_cache=caches[0], value_cache=caches[1], slot_mapping=mapping
        )
        return problem, stored_rules(slots, mapping, blocks, block_size)

    return make


def places(
    draw: Draw, tokens: int | None, padding: int, block_size: int, num_blocks: int | None
) -> tuple[list[int], torch.Tensor, int]:
    """Where new tokens go: their slots, the slot mapping `[tokens + padding]`, and the blocks of
    the cache. Arguments as of :func:`store`."""
    stored = draw.prime() if tokens is None else tokens
    count = stored + padding
    blocks = num_blocks or -(-stored // block_size) + 2
    last = blocks * block_size
    slots = draw.order(range(last - stored - block_size, last))[:stored]
    if slots and not num_blocks:
        slots[draw.integer(0, stored - 1)] = 0  # a slot like any other
    mapping = torch.full((count,), -1, dtype=torch.int64)
    mapping[draw.order(range(count))[:stored]] = torch.tensor(slots, dtype=torch.int64)
    return slots, mapping, blocks


def among_idle(
    many: int, make: Callable[[Draw, torch.dtype], Setup]
) -> Callable[[Draw, torch.dtype], Setup]:
    """The tokens of a problem, far from each other among `many` that are not stored, and whose
    programs do not run.
    """

    def spread(draw: Draw, dtype: torch.dtype) -> Setup:
        problem, rules = make(draw, dtype)
        few = problem["slot_mapping"]
        middle = draw.order(range(many // 2, many - 1))[: len(few) - 1]
        places = [*sorted(middle), many - 1]
        mapping = torch.full((many,), -1, dtype=torch.int64)
        mapping[places] = few
        for name in ("key", "value"):
            rows = unfilled(many, *problem[name].shape[1:], dtype=dtype)
            rows[places] = problem[name]
            problem[name] = rows
        problem["slot_mapping"] = mapping
        new = replace(rules.rule("key"), readable=(mapping >= 0)[:, None, None])
        tensors = {**rules.tensors, "key": new, "value": new}
        return problem, CaseRules(tensors, programs=tuple(places), rest_is_idle=True)

    return spread


TOKENS = {"7 tokens": (7, 0), "one token": (1, 0), "4 of 7 tokens are stored": (4, 3)}
SLICES = {
    "slices of qkv": ("key", "value"),
    "keys are a slice": ("key",),
    "values are a slice": ("value",),
    "contiguous": (),
}

STORE_KV = (
    Case("one", "one token of one head", "float32", store(1, 1, 32, 16, slices=())),
    Case("block", "a whole block and a token", "float32", store(17, 2, 64, 16)),
    Case("prime", "a row that is no power of two", "bfloat16", store(None, 3, 80, 16)),
    Case("odd-row", "3 heads of 35: a row of odd length", "float16", store(None, 3, 35, 4)),
    Case("padding", "slots of -1 in between", "float16", store(7, 2, 64, 16, padding=5)),
    Case("nothing", "only slots of -1", "float32", store(0, 2, 32, 16, padding=4)),
    Case("sliced", "keys and values are slices of qkv", "float16",
         store(6, 2, 32, 4, 2, more=3)),
    Case("block-1", "blocks of one token", "bfloat16", store(None, 1, 128, 1)),
    Case("far", "tokens 2^30 elements apart", "float16", store(6, 1, 32, 4, far=True)),
    Case("odd-block", "blocks of 12 tokens, 5 heads of 96", "bfloat16", store(31, 5, 96, 12)),
    Case("many", "1,100 tokens, 300 of which are stored", "float16",
         store(300, 1, 16, 7, padding=800)),
    Case("block-32", "blocks of 32 tokens, 8 heads", "float32", store(33, 8, 32, 32)),
    Case("wide-head", "heads of 200", "float16", store(3, 2, 200, 16)),
    Case("wide-row", "64 heads of 136: rows of 8,704", "float16", store(3, 64, 136, 4)),
    Case("deep", "9 of 70,000 tokens are stored", "float16",
         among_idle(70_000, store(9, 1, 16, 7))),
    Case("many-slots", "more than 2^25 slots", "bfloat16",
         store(7, 2, 64, 16, num_blocks=BIG_CACHE // (16 * 2 * 64))),
    Case("big-cache", "more than 2^32 elements a cache", "float16",
         store(5, 8, 128, 16, num_blocks=BIG_CACHE // (16 * 8 * 128))),
    Case("traffic", "64 tokens of 4 heads", "bfloat16", store(64, 4, 128, 16, slices=()),
         graded=True),
    *mixed(
        lambda tokens, **sizes: store(tokens=tokens[0], padding=tokens[1], **sizes),
        tokens=TOKENS,
        heads={"one head": 1, "3 heads": 3},
        dim={"of 32": 32, "of 80": 80, "of 35": 35},
        block_size={"blocks of one": 1, "blocks of 16": 16, "blocks of 12": 12},
        slices=SLICES,
    ),
)  # fmt: skip

CASES = {"store_kv": STORE_KV}
