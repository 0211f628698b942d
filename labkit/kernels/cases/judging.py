"""Cases for the judge of drafts: requests with and without drafts, rejections at every place.

Of a row of probabilities only the number of the draft's own token may be read; all others are NaN.
What is decided is drawn first, place by place, and the random numbers are chosen to bring it
about: so every case has rejections where it wants them, and none within a rounding error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from labkit.kernels.cases.draw import (
    Case,
    Draw,
    Setup,
    far_apart,
    inside_wider,
    lazy_zeros,
)
from labkit.kernels.cases.mixed import mixed
from labkit.kernels.cases.rules import CaseRules, TensorRule

LARGE_IDS = (2**24 + 1, 2**31 - 1)
"""Token ids that neither 16 bits nor float32 hold; vocabularies are smaller, ids need not be."""
OWN_NUMBER = "a draft is judged by the probability of its own token"


PER_DRAFT = (
    "draft_token_ids", "recovered_token_ids", "uniform_probs", "target_probs", "draft_probs",
)  # fmt: skip


def judge(
    counts: Sequence[int] | None,
    vocab_size: int,
    accept: float = 0.6,
    drawn: bool = True,
    room: int = 0,
    impossible: bool = False,
    margin: float = 0.5,
    slices: Sequence[str] = ("target", "drafted"),
    far: bool = False,
    tiny: bool = False,
    equal: bool = False,
) -> Callable[[Draw, torch.dtype], Setup]:
    """Drafts of some requests.

    Args:
        counts: how many drafts each has; None: a prime number of requests with 0 to 5.
        accept: share of the places whose draft is accepted.
        drawn: with the probabilities that drafts were drawn from.
        room: the output has so many more places than the longest needs.
        impossible: some drafts have q = 0, and some p = 0 beside u = 0.
        margin: how far u is from the border between accepted and rejected, as a share.
        slices: which probabilities are a slice of a wider matrix.
        far: rows of probabilities, of both kinds, lie 2^30 elements apart.
        tiny: as of tokens that hardly ever come: p and q of a draft are around 1e-3 to 1e-30.
        equal: where a draft is rejected, u * q is p, to the last bit.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        numbers = [draw.integer(0, 5) for _ in range(draw.prime())] if counts is None else counts
        total, width = sum(numbers), max(numbers) + 1 + room
        q = (draw.normal(total).abs() + 0.05).clamp(max=0.9).to(dtype)
        p = (draw.normal(total).abs() + 0.05).clamp(max=0.9).to(dtype)
        if tiny:
            rare = torch.tensor([10.0 ** -draw.integer(3, 30) for _ in range(total)])
            p, q = (p * rare).to(dtype), (q * rare).to(dtype)
        keep = torch.tensor([draw.integer(1, 1000) <= 1000 * accept for _ in range(total)])
        ratio = (p.double() / (q.double() if drawn else 1.0)).clamp(max=1.0)
        below, above = ratio * (1 - margin), ratio + (1 - ratio) * margin
        u = torch.where(keep, below, above.clamp(max=0.999)).float()  # 1 is never rejected
        if equal:
            parts = torch.tensor([draw.integer(1, 127) for _ in range(total)])
            q = torch.full((total,), 0.5, dtype=dtype)
            p = (parts / (256.0 if drawn else 128.0)).to(dtype)
            u = torch.where(keep, parts / 256.0, parts / 128.0)
        if impossible:  # in every second request the former, in the others the latter
            ends = torch.tensor(numbers).cumsum(0)
            q[ends[::2] - 2] = 0.0
            p[ends[1::2] - 3], u[ends[1::2] - 3] = 0.0, 0.0
        tokens = torch.tensor([draw.integer(0, vocab_size - 1) for _ in range(total)])
        tokens[:1] = vocab_size - 1
        target, own = _around(p, tokens, vocab_size)
        drafted = _around(q, tokens, vocab_size)[0] if drawn else None
        if "target" in slices:
            target = inside_wider(target, 2, 3)
        if "drafted" in slices and drafted is not None:
            drafted = inside_wider(drafted, 1, 6)
        if far:
            target = far_apart(target)
            drafted = None if drafted is None else far_apart(drafted)
        problem = dict(
            output=torch.full((len(numbers), width), -7),
            draft_ends=torch.tensor(numbers).cumsum(0).int(),
            draft_token_ids=tokens,
            draft_probs=drafted,
            target_probs=target,
            bonus_token_ids=torch.tensor([draw.integer(*LARGE_IDS) for _ in numbers]),
            recovered_token_ids=torch.tensor([draw.integer(*LARGE_IDS) for _ in range(total)]),
            uniform_probs=u,
        )
        rule = TensorRule(readable=own, axes=("draft", "token"), why=OWN_NUMBER)
        rules = {"target_probs": rule, "output": TensorRule(axes=("request", "place"))}
        if drafted is not None:
            rules["draft_probs"] = rule
        return problem, CaseRules(rules)

    return make


def behind(many: int, make: Callable[[Draw, torch.dtype], Setup]) -> Callable[..., Setup]:
    """The requests of a problem behind one with `many` drafts. Its program does not run: all its
    numbers are 0, so the first draft is rejected, and its row holds what that gives."""

    def moved(draw: Draw, dtype: torch.dtype) -> Setup:
        problem, rules = make(draw, dtype)
        count = many + len(problem["draft_token_ids"])
        mine = torch.arange(count)[:, None] >= many
        tensors = dict(rules.tensors)
        for name in PER_DRAFT:
            few = problem[name]
            problem[name] = lazy_zeros(count, *few.shape[1:], dtype=few.dtype)
            problem[name][many:] = few
        for name in ("target_probs", "draft_probs"):
            tensors[name] = replace(rules.rule(name), readable=mine)
        nobodys = {"output": -1, "draft_ends": 0, "bonus_token_ids": 0}
        for name, value in nobodys.items():
            few = problem[name]
            problem[name] = torch.cat((torch.full_like(few[:1], value), few))
        problem["output"][0, 0] = 0
        problem["draft_ends"] += many
        runs = torch.arange(len(problem["output"]))[:, None] > 0
        tensors["output"] = replace(rules.rule("output"), writable=runs, required=runs)
        programs = tuple(range(1, len(runs)))
        return problem, CaseRules(tensors, programs, rest_is_idle=True)

    return moved


def large_vocab(draw: Draw, dtype: torch.dtype) -> Setup:
    """Three drafts of tokens that float32 cannot tell from their neighbours. The neighbours have
    probabilities that would turn every decision."""
    vocab_size = 2**24 + 2 * draw.integer(100, 500)
    tokens = torch.tensor(draw.order(range(2**24 + 1, vocab_size, 2))[:3])
    target, drafted = (lazy_zeros(3, vocab_size, dtype=dtype) for _ in range(2))
    accepted = torch.tensor([True, True, False])
    place = torch.arange(3)
    for step in (-1, 0, 1):
        turned = accepted == (step == 0)
        target[place, tokens + step] = torch.where(turned, 0.8, 0.1).to(dtype)
        drafted[place, tokens + step] = 0.5
    own = torch.zeros(3, vocab_size, dtype=torch.bool)
    own[place, tokens] = True
    problem = dict(
        output=torch.full((1, 4), -7),
        draft_ends=torch.tensor([3], dtype=torch.int32),
        draft_token_ids=tokens,
        draft_probs=drafted,
        target_probs=target,
        bonus_token_ids=torch.tensor([draw.integer(*LARGE_IDS)]),
        recovered_token_ids=torch.tensor([draw.integer(*LARGE_IDS) for _ in range(3)]),
        uniform_probs=torch.full((3,), 0.6),
    )
    rule = TensorRule(readable=own, axes=("draft", "token"), why=OWN_NUMBER)
    rules = {"target_probs": rule, "draft_probs": rule}
    rules["output"] = TensorRule(axes=("request", "place"))
    return problem, CaseRules(rules)


def _around(values: Tensor, tokens: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """`[N, vocab_size]` with one value a row, all else NaN; and where the values are."""
    own = torch.zeros(len(tokens), vocab_size, dtype=torch.bool)
    own[torch.arange(len(tokens)), tokens] = True
    matrix = torch.full(own.shape, float("nan"), dtype=values.dtype)
    return matrix.masked_scatter(own, values), own


REJECTION_RANDOM_SAMPLE = (
    Case("one", "one draft of one request", "float32", judge([1], 7, slices=())),
    Case("all", "everything is accepted", "float32", judge([3, 1, 4], 50, accept=1.0)),
    Case("none", "nothing is accepted", "float32", judge([3, 1, 4], 50, accept=0.0)),
    Case("ragged", "requests with 0 to 5 drafts", "float32", judge(None, 100)),
    Case("bare", "requests without drafts between others", "float16", judge([0, 2, 0, 0, 3], 33)),
    Case("chosen", "drafts that were not drawn", "bfloat16", judge([4, 2, 3], 60, drawn=False)),
    Case("chosen-impossible", "not drawn, and p = 0 beside u = 0", "float32",
         judge([4, 5], 30, accept=1.0, drawn=False, impossible=True)),
    Case("equal", "u on the border: it must be below", "float32",
         judge([6] * 9, 30, accept=0.7, equal=True)),
    Case("chosen-equal", "the same for drafts that were not drawn", "float16",
         judge([6] * 9, 30, accept=0.7, drawn=False, equal=True)),
    Case("close", "u near the border", "float32", judge([6] * 9, 30, accept=0.8, margin=2e-4)),
    Case("close-half", "u near the border, probabilities in half precision", "float16",
         judge([6] * 9, 30, accept=0.8, margin=2e-4)),
    Case("chosen-close", "the same for drafts that were not drawn", "bfloat16",
         judge([6] * 9, 30, accept=0.8, drawn=False, margin=2e-4)),
    Case("chosen-ragged", "the same, ragged", "float32", judge(None, 64, drawn=False)),
    Case("power", "7 drafts: the tile has no place to spare", "float16", judge([7, 2, 7], 40)),
    Case("over", "8 drafts: one more than a tile of 8", "bfloat16", judge([8, 1], 40, accept=0.9)),
    Case("long", "150 drafts", "float32", judge([150, 3], 20, accept=0.99)),
    Case("wide-vocab", "270,000 tokens", "float16", judge([3, 2], 270_000, accept=1.0)),
    Case("large-vocab", "tokens behind the 2^24th", "float16", large_vocab),
    Case("room", "more places than the longest needs", "float32", judge([2, 3], 20, room=4)),
    Case("impossible", "q = 0, and p = 0 beside u = 0", "float32",
         judge([6, 5, 4, 6], 30, accept=1.0, impossible=True)),
    Case("tiny", "probabilities around 1e-3 to 1e-30", "float32",
         judge([9, 7, 1, 8], 30, accept=0.9, tiny=True)),
    Case("tiny-bf16", "the same in half precision", "bfloat16",
         judge([9, 7, 1, 8], 30, accept=0.9, tiny=True)),
    Case("chosen-tiny", "the same for drafts that were not drawn", "bfloat16",
         judge([9, 7, 1, 8], 30, accept=0.9, drawn=False, tiny=True)),
    Case("sliced", "probabilities are slices", "float32", judge([2, 4], 25)),
    Case("far", "rows of p 2^30 elements apart", "float16",
         judge([4, 1], 64, accept=1.0, drawn=False, far=True)),
    Case("far-drafts", "rows of p and of q 2^30 elements apart", "float16",
         judge([4, 2], 64, accept=1.0, far=True)),
    Case("deep", "behind 2^24 drafts", "float16", behind(2**24 + 1, judge([3, 0, 2, 3], 8))),
    Case("many", "more than a thousand requests", "float32", judge([1, 0, 2] * 360, 8)),
    Case("traffic", "16 requests of 4 drafts", "float32", judge([4] * 16, 128, slices=()),
         graded=True),
    *mixed(
        judge,
        counts={
            "one request": [5],
            "a request that fills its tile": [7],
            "requests of 0 to 4": [3, 0, 4, 1],
        },
        vocab_size={"32 tokens": 32, "77 tokens": 77},
        accept={"": 0.6, "nothing is rejected": 1.0, "everything is rejected": 0.0},
        drawn={"drawn": True, "not drawn": False},
        room={"": 0, "3 places to spare": 3},
        slices={
            "slices": ("target", "drafted"),
            "p is a slice": ("target",),
            "q is a slice": ("drafted",),
            "contiguous": (),
        },
    ),
)  # fmt: skip

CASES = {"rejection_random_sample": REJECTION_RANDOM_SAMPLE}
