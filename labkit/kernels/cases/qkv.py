"""Cases for norm, rotation and store in one: odd heads, parts that turn, slots of -1, other caches.

Keys and values of a token without a slot may not be read, and its queries must be turned as all
others: its row belongs to a request in the padding of a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from labkit.kernels.cases.draw import VAST, Case, Draw, Setup, far_apart, inside_wider, lazy_zeros
from labkit.kernels.cases.mixed import mixed
from labkit.kernels.cases.pages import BIG_CACHE, stored_rules
from labkit.kernels.cases.rules import CaseRules, TensorRule
from labkit.kernels.cases.storing import places


def qkv(
    tokens: int | None,
    heads: tuple[int, int],
    dim: tuple[int, int],
    block_size: int,
    norm: bool = True,
    padding: int = 0,
    sliced: bool = True,
    far: bool = False,
    eps: float = 1e-6,
    first: int = 900,
    size: float = 1.0,
    spoilt: float | None = None,
    where: str = "query",
    cache: str | None = None,
    num_blocks: int | None = None,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`tokens` new tokens (None: a prime number) with a slot, and `padding` more with -1.

    `heads`: of queries, and of keys. `dim`: features of a head, and how many of them turn. Angles
    are those of positions from `first`. `size` multiplies queries, keys and values. `spoilt`: a
    number is this one, NaN or infinity, of what `where` names. `cache`: its dtype, if it is not
    that of the tokens.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        (num_heads, kv_heads), (head_dim, turning) = heads, dim
        slots, mapping, blocks = places(draw, tokens, padding, block_size, num_blocks)
        count, total = len(mapping), num_heads + 2 * kv_heads
        x = (draw.normal(count, total, head_dim) * size).to(dtype)
        weights = {
            f"{name}_weight": (0.5 + draw.normal(head_dim)).to(dtype) if norm else None
            for name in ("query", "key")
        }
        speed = 10_000.0 ** (-torch.arange(0, turning, 2, dtype=torch.float64) / turning)
        angles = (first + torch.arange(count, dtype=torch.float64))[:, None, None] * speed
        cos, sin = (torch.cat((sign * part, part), -1).to(dtype) for sign, part in
                    ((1, angles.cos()), (-1, angles.sin())))  # fmt: skip
        if spoilt is not None:
            token = draw.integer(0, count - 1)
            parts = dict(zip(("query", "key", "value"), x[token].split(
                [num_heads, kv_heads, kv_heads]), strict=True))  # fmt: skip
            parts |= {**weights, "cos": cos[token, ..., turning // 2 :],
                      "sin": sin[token, ..., turning // 2 :]}  # fmt: skip
            found = parts[where].view(-1)
            found[draw.integer(0, found.numel() - 1)] = spoilt
            cos[..., : turning // 2] = cos[..., turning // 2 :]
            sin[..., : turning // 2] = -sin[..., turning // 2 :]
        if sliced or far:
            x = far_apart(x) if far else inside_wider(x, head_dim + 1, 3)
        cache_dtype = dtype if cache is None else getattr(torch, cache)
        shape = (blocks, block_size, kv_heads, head_dim)
        if num_blocks:
            caches = [lazy_zeros(*shape, dtype=cache_dtype) for _ in range(2)]
        else:
            caches = [draw.normal(*shape, dtype=cache_dtype) for _ in range(2)]
        problem = dict(
            qkv=x, **weights, eps=eps, cos=cos, sin=sin, key_cache=caches[0],
            value_cache=caches[1], slot_mapping=mapping,
        )  # fmt: skip
        rules = dict(stored_rules(slots, mapping, blocks, block_size).tensors)
        is_query = (torch.arange(total) < num_heads)[None, :, None]
        axes = ("token", "head", "feature")
        own = {
            "qkv": TensorRule(
                is_query | (mapping >= 0)[:, None, None], is_query, is_query, axes,
                "its slot is -1, so this key or value is not stored",
            ),
            **{name: TensorRule(axes=axes[2:]) for name in weights},
            "cos": TensorRule(axes=axes),
            "sin": TensorRule(axes=axes),
            **{name: rules[name] for name in ("key_cache", "value_cache")},
        }  # fmt: skip
        return problem, CaseRules(own)

    return make


QK_NORM_ROPE_STORE = (
    Case("one", "one token, one head each", "float32",
         qkv(1, (1, 1), (32, 32), 16, sliced=False)),
    Case("two", "two tokens, 4 and 2 heads, slices of a wider matrix", "float32",
         qkv(2, (4, 2), (64, 64), 16)),
    Case("padding", "slots of -1 in between", "float32", qkv(5, (4, 2), (32, 32), 4, padding=4)),
    Case("nothing", "only slots of -1", "bfloat16", qkv(0, (4, 2), (64, 64), 16, padding=4)),
    Case("plain", "no norm", "float32", qkv(None, (4, 2), (64, 64), 16, norm=False)),
    Case("plain-half", "no norm, slots of -1", "float16",
         qkv(5, (6, 3), (80, 80), 16, norm=False, padding=3)),
    Case("partial", "24 of 32 features turn", "float32", qkv(None, (3, 1), (32, 24), 16)),
    Case("partial-half", "96 of 128 features turn, no norm", "bfloat16",
         qkv(4, (6, 2), (128, 96), 16, norm=False)),
    Case("two-turn", "2 of 9 features turn", "float32", qkv(3, (3, 2), (9, 2), 4)),
    Case("model", "16 and 8 heads of 128", "bfloat16", qkv(3, (16, 8), (128, 128), 16)),
    Case("tile", "8 heads of 128 in all: exactly a tile", "float16",
         qkv(3, (6, 1), (128, 128), 16)),
    Case("over", "9 heads of 128 in all: one more than a tile", "float32",
         qkv(3, (7, 1), (128, 128), 16)),
    Case("odd", "5 and 3 heads of 35, of which 34 turn", "float16",
         qkv(None, (5, 3), (35, 34), 12)),
    Case("all-heads", "150 heads of 16", "float16", qkv(2, (150, 5), (16, 16), 16)),
    Case("kv-heads", "as many keys as queries: 70", "float32", qkv(2, (70, 70), (16, 16), 16)),
    Case("wide-head", "heads of 320", "float32", qkv(2, (3, 1), (320, 320), 16)),
    Case("block-1", "blocks of one token", "float16", qkv(None, (2, 1), (64, 64), 1)),
    Case("start", "position 0: nothing turns", "float32", qkv(1, (4, 2), (32, 32), 16, first=0)),
    Case("later", "positions beyond 100,000", "float32",
         qkv(5, (2, 1), (64, 64), 16, first=100_003)),
    Case("hundreds", "600 tokens, 400 of which are stored", "float16",
         qkv(400, (2, 1), (16, 16), 7, padding=200)),
    Case("eps", "an eps as large as the numbers' squares", "float32",
         qkv(3, (4, 2), (64, 64), 16, eps=0.5)),
    Case("eps-half", "the same in bfloat16", "bfloat16", qkv(3, (4, 2), (64, 64), 16, eps=0.5)),
    Case("eps-tiny", "numbers that an eps of 1e-6 would drown", "float32",
         qkv(3, (4, 2), (64, 64), 16, eps=1e-20, size=1e-8)),
    Case("large", "numbers whose squares do not fit into float16", "float16",
         qkv(4, (4, 2), (96, 96), 16, size=1000.0)),
    Case("vast", "numbers beyond float16, turned without a norm", "bfloat16",
         qkv(4, (4, 2), (64, 64), 16, norm=False, size=VAST)),
    Case("tiny", "numbers below float16, turned without a norm", "bfloat16",
         qkv(4, (4, 2), (64, 64), 16, norm=False, size=1 / VAST)),
    Case("nan", "NaN in a query: it spoils its head", "float32",
         qkv(4, (4, 2), (32, 32), 16, spoilt=torch.nan)),
    Case("nan-key", "NaN in a key", "float16",
         qkv(4, (4, 2), (32, 32), 16, spoilt=torch.nan, where="key")),
    Case("nan-value", "NaN in a value: no other number is spoilt", "float32",
         qkv(4, (4, 2), (32, 32), 16, spoilt=torch.nan, where="value")),
    Case("nan-weight", "NaN in the weight of queries", "float32",
         qkv(4, (4, 2), (32, 32), 16, spoilt=torch.nan, where="query_weight")),
    Case("nan-key-weight", "NaN in the weight of keys", "float16",
         qkv(4, (4, 2), (32, 32), 16, spoilt=torch.nan, where="key_weight")),
    Case("nan-cos", "NaN in a cos", "bfloat16",
         qkv(4, (4, 2), (32, 32), 16, spoilt=torch.nan, where="cos")),
    Case("nan-sin", "NaN in a sin", "float32",
         qkv(4, (4, 2), (32, 32), 16, spoilt=torch.nan, where="sin")),
    Case("inf", "infinity in a key: with a norm it is NaN", "float32",
         qkv(4, (4, 2), (32, 32), 16, spoilt=torch.inf, where="key")),
    Case("wider-cache", "a cache of float32", "bfloat16",
         qkv(5, (4, 2), (64, 64), 16, padding=2, cache="float32")),
    Case("other-cache", "a cache of float16", "bfloat16",
         qkv(5, (4, 2), (64, 64), 16, norm=False, cache="float16")),
    Case("narrower-cache", "a cache of bfloat16", "float16",
         qkv(5, (4, 2), (64, 64), 16, cache="bfloat16")),
    Case("far", "tokens 2^30 elements apart", "float16",
         qkv(6, (4, 2), (64, 64), 16, far=True)),
    Case("big-cache", "more than 2^32 elements a cache", "float16",
         qkv(5, (4, 2), (128, 128), 16, num_blocks=BIG_CACHE // (16 * 2 * 128))),
    Case("many-slots", "more than 2^25 slots", "bfloat16",
         qkv(7, (4, 2), (64, 64), 16, num_blocks=BIG_CACHE // (16 * 2 * 64))),
    Case("traffic", "8 tokens, 16 and 8 heads of 128", "bfloat16",
         qkv(8, (16, 8), (128, 128), 16, sliced=False), graded=True),
    *mixed(
        lambda tokens, **sizes: qkv(tokens=tokens[0], padding=tokens[1], **sizes),
        tokens={"one token": (1, 0), "5 tokens": (5, 0), "4 of 6 tokens are stored": (4, 2)},
        heads={"one head each": (1, 1), "3 and 1 heads": (3, 1), "6 and 3 heads": (6, 3),
               "12 and 6 heads": (12, 6), "40 and 2 heads": (40, 2), "8 and 8 heads": (8, 8),
               "25 and 5 heads": (25, 5), "8 and 6 heads": (8, 6), "9 and 6 heads": (9, 6)},
        dim={"of 32": (32, 32), "of 35": (35, 34), "of 70": (70, 70), "of 70, 32 turn": (70, 32),
             "of 128, 96 turn": (128, 96), "of 65, 64 turn": (65, 64)},
        norm={"": True, "no norm": False},
        eps={"": 1e-6, "an eps of 0.4": 0.4},
        block_size={"blocks of 16": 16, "blocks of 5": 5},
        sliced={"a slice": True, "contiguous": False},
    ),
)  # fmt: skip

CASES = {"qk_norm_rope_store": QK_NORM_ROPE_STORE}
