"""Cases for the plain sampler: greedy and random rows, tiles and their tails, rows that failed.

A random row's number depends on its seed alone, so seeds are drawn until the number is not within
a rounding error of a border between two tokens. Its token is then the same in any right order of
summing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from labkit.kernels.cases.draw import Case, Draw, Setup, far_apart, inside_wider, unfilled
from labkit.kernels.cases.mixed import mixed
from labkit.kernels.cases.rules import CaseRules, TensorRule
from mini_vllm.kernels.sampling import TILE, num_tiles
from mini_vllm.sample.sampler import MAX_LOGIT, uniform_numbers

TEMPERATURES = (0.01, 0.3, 0.7, 1.0, 1.3, 20.0)
MARGIN = 4e-6
"""How far a number stays from a border, as a share of the whole sum."""


def draw(
    rows: int | None,
    vocab_size: int,
    kinds: str = "random",
    scale: float = 4.0,
    banned: float = 0.0,
    spoilt: str = "",
    equal: bool = False,
    last: bool = False,
    sliced: bool = True,
    far: bool = False,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`rows` rows (None: a prime number) of `vocab_size` logits.

    Args:
        kinds: "greedy", "random", or "both" in turns.
        scale: of the logits: how much of the mass few tokens hold.
        banned: share of the tokens that are -inf.
        spoilt: the second row has "nan", "inf", or a number "beyond" the limit; it is "banned"
            whole, or "banned-nan": NaN is all that it has beside -inf.
        equal: all logits of a row are the same.
        last: of each row the last token alone is not -inf.
        sliced: rows are slices of wider ones.
        far: rows lie 2^30 elements apart.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = draw.prime() if rows is None else rows
        logits = draw.normal(count, vocab_size) * scale
        if equal:
            logits.fill_(scale)
        if banned:
            quantile = torch.special.ndtri(torch.tensor(banned))
            logits[draw.normal(count, vocab_size) < quantile] = -torch.inf
        if last:
            logits[:, :-1] = -torch.inf
            logits[:, -1] = -3.0
        limit = MAX_LOGIT if draw.integer(0, 1) else 1.0e30
        if spoilt:
            _spoil(draw, logits[1], spoilt, limit)
        logits = logits.to(dtype)
        greedy = [kinds == "greedy" or (kinds == "both" and row % 2 == 0) for row in range(count)]
        temperature = torch.tensor(
            [0.0 if one else TEMPERATURES[draw.integer(0, len(TEMPERATURES) - 1)] for one in greedy]
        )
        index = torch.tensor([draw.integer(0, 9000) for _ in range(count)])
        seeds = torch.tensor(
            [_clear_seed(draw, logits[row], temperature[row], index[row]) for row in range(count)]
        )
        if sliced:
            logits = inside_wider(logits, 3, 5)
        if far:
            logits = far_apart(logits)
        tiles = num_tiles(vocab_size)
        is_random = kinds != "greedy"
        problem = dict(
            token_ids=torch.full((count,), -7),
            logits=logits,
            temperature=temperature if is_random else None,
            seeds=seeds if is_random else None,
            num_output_tokens=index if is_random else None,
            largest=unfilled(count, tiles, dtype=torch.float32),
            mass=unfilled(count, tiles, dtype=torch.float32),
            max_logit=limit,
        )
        rules = {
            "logits": TensorRule(axes=("row", "token")),
            "token_ids": TensorRule(axes=("row",)),
            "largest": TensorRule(axes=("row", "tile")),
            "mass": TensorRule(axes=("row", "tile")),
        }
        return problem, CaseRules(rules)

    return make


def _spoil(draw: Draw, row: Tensor, how: str, limit: float) -> None:
    place = draw.integer(0, len(row) - 1)
    if how.startswith("banned"):
        row.fill_(-torch.inf)
    if how != "banned":
        numbers = {"nan": torch.nan, "banned-nan": torch.nan, "inf": torch.inf}
        row[place] = numbers.get(how, 1.5 * limit)


def _clear_seed(draw: Draw, row: Tensor, temperature: Tensor, index: Tensor) -> int:
    """A seed whose number lies within a token, or any after many: borders may be everywhere."""
    weights = ((row.double() - row.double().max()) / (float(temperature) or 1.0)).exp()
    borders = weights.cumsum(0) / weights.sum()
    seed = 0
    for _ in range(200):
        seed = draw.integer(-(2**63), 2**63 - 1)
        u = float(uniform_numbers(torch.tensor([seed]), index.view(1)))
        if not bool(((borders - u).abs() < MARGIN).any()):
            break
    return seed


DRAW_TOKENS = (
    Case("one", "one token", "float32", draw(1, 1, sliced=False)),
    Case("few", "a few rows of 40 tokens", "float32", draw(None, 40)),
    Case("greedy", "no row has a temperature", "bfloat16", draw(None, 300, "greedy")),
    Case("both", "greedy rows and random ones in turns", "float32", draw(8, 300, "both")),
    Case("tile", "1,024 tokens: exactly one tile", "float32", draw(3, TILE, "both")),
    Case("over", "1,025 tokens: one more than a tile", "float16", draw(3, TILE + 1, "both")),
    Case("last", "only the last token, alone in its tile, may come", "float32",
         draw(4, 2 * TILE + 1, "both", last=True)),
    Case("equal", "all logits are the same: the first is the argmax", "float32",
         draw(4, 300, "both", equal=True)),
    Case("equal-tiles", "the same over three tiles", "bfloat16",
         draw(4, 3 * TILE, "both", equal=True)),
    Case("banned", "most tokens are -inf, whole tiles among them", "float32",
         draw(6, 2500, "both", banned=0.997)),
    Case("wide", "5,000 tokens", "float32", draw(4, 5000, "both")),
    Case("flat", "no token has much of the mass", "float32", draw(3, 700, scale=0.5)),
    Case("sharp", "one token has nearly all of it", "bfloat16", draw(4, 2100, "both", scale=60.0)),
    Case("nan", "a row has a NaN", "float32", draw(3, 1500, "both", spoilt="nan")),
    Case("nan-greedy", "a greedy row has a NaN", "float16", draw(3, 1500, "greedy", spoilt="nan")),
    Case("inf", "a row has +inf", "float32", draw(3, 1500, spoilt="inf")),
    Case("beyond", "a logit is too large for a temperature", "float32",
         draw(3, 1500, "both", spoilt="beyond")),
    Case("all-banned", "no token of a row is left", "float32", draw(3, 1500, spoilt="banned")),
    Case("banned-nan", "NaN is all that is left of a row", "bfloat16",
         draw(3, 1500, "both", spoilt="banned-nan")),
    Case("far", "rows 2^30 elements apart", "float16", draw(6, 64, "both", far=True)),
    Case("hundreds", "600 rows", "bfloat16", draw(600, 37, "both")),
    Case("vast", "logits that float16 does not hold", "bfloat16",
         draw(5, 1500, "both", scale=2.0e6)),
    Case("wide-vocab", "151,936 tokens: 149 tiles", "bfloat16", draw(2, 151_936, "both", 40.0)),
    Case("traffic", "2 rows of 32,768 tokens", "bfloat16",
         draw(2, 32_768, "both", sliced=False), graded=True),
    *mixed(
        draw,
        rows={"one row": 1, "3 rows": 3},
        vocab_size={"7 tokens": 7, "1,024 tokens": 1024, "2,100 tokens": 2100},
        kinds={"greedy": "greedy", "random": "random", "both kinds": "both"},
        banned={"": 0.0, "half of them banned": 0.5},
        sliced={"slices": True, "contiguous": False},
    ),
)  # fmt: skip

CASES = {"draw_tokens": DRAW_TOKENS}
