"""Cases for the mask of structured output: words and their last bits, rows in any order, tails.

No logit may be read, and only what is forbidden may be written: the monitor holds both against
the bits. So a logit that is NaN or infinite has to come out as it went in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from labkit.kernels.cases.draw import Case, Draw, Setup, far_apart, inside_wider, lazy_zeros
from labkit.kernels.cases.mixed import mixed
from labkit.kernels.cases.rules import CaseRules, TensorRule

BITS, WORDS = 32, 32
"""Bits of a word, and words of a tile where a vocabulary has so many."""


def allowed_tokens(bitmask: Tensor, vocab_size: int) -> Tensor:
    """[N, vocab_size] bool, from the definition: token t is bit t % 32 of word t // 32."""
    token = torch.arange(vocab_size)
    word = token // BITS
    known = word < bitmask.shape[1]
    words = bitmask.long()[:, word.clamp(max=bitmask.shape[1] - 1)]
    return ((words >> (token % BITS)) & 1).bool() & known


def mask(
    rows: int | None,
    vocab_size: int,
    share: float = 0.5,
    batch: int | None = None,
    idle: int = 0,
    num_words: int | None = None,
    slices: Sequence[str] = ("logits", "bitmask"),
    far: bool = False,
    far_masks: bool = False,
) -> Callable[[Draw, torch.dtype], Setup]:
    """`rows` masked rows (None: a prime number) of a batch, in any order.

    Args:
        share: of the tokens that are allowed.
        batch: rows of the logits; None: two more than there are masks.
        idle: masks before the last that allow everything, and whose programs do not run.
        num_words: of a mask; None: as many as the vocabulary needs.
        slices: what is a slice of a wider matrix.
        far, far_masks: rows of logits, or of masks, lie 2^30 elements apart.
    """

    def make(draw: Draw, dtype: torch.dtype) -> Setup:
        count = draw.prime() if rows is None else rows
        total = count + idle + 2 if batch is None else batch
        width = -(-vocab_size // BITS) if num_words is None else num_words
        logits = draw.normal(total, vocab_size, dtype=dtype)
        special = torch.tensor([float("nan"), float("inf"), -0.0])[: min(vocab_size, 3)]
        logits[0, : len(special)] = special
        bits = draw.normal(count, width, BITS) < torch.special.ndtri(torch.tensor(share))
        weights = torch.tensor([1 << bit for bit in range(BITS)])
        bitmask = (bits * weights).sum(-1).to(torch.uint32).view(torch.int32)
        if width * BITS > vocab_size:  # bits of tokens that there are not may be anything
            bitmask[:, -1] |= -(2**31)
        masked = [*range(count - 1), count + idle - 1]
        if idle:
            few, bitmask = bitmask, torch.full((count + idle, width), -1, dtype=torch.int32)
            bitmask[masked] = few
        if "logits" in slices:
            logits = inside_wider(logits, 3, 5)
        if "bitmask" in slices:
            bitmask = _inside_wider_words(bitmask)
        if far:
            logits = far_apart(logits)
        if far_masks:
            bitmask = far_apart(bitmask)
        indices = torch.tensor(draw.order(range(total))[: count + idle], dtype=torch.int32)
        forbidden = torch.zeros(total, vocab_size, dtype=torch.bool)
        forbidden[indices.long()] = ~allowed_tokens(bitmask, vocab_size)
        problem = dict(logits=logits, bitmask=bitmask, indices=indices)
        programs = tuple(masked) if idle else None
        return problem, CaseRules(_rules_of(forbidden), programs, rest_is_idle=bool(idle))

    return make


def many_rows(draw: Draw, dtype: torch.dtype) -> Setup:
    """More rows, of one token, than float32 can count: three of the last are masked."""
    total = 2**24 + 2 * draw.integer(3, 500) + 1
    rows = draw.order([total - 2, total - 4, total - 5])
    logits = lazy_zeros(total, 1, dtype=dtype)
    logits[rows] = draw.normal(3, 1, dtype=dtype)
    forbidden = torch.zeros(total, 1, dtype=torch.bool)
    forbidden[rows] = True
    problem = dict(
        logits=logits,
        bitmask=torch.full((3, 1), -2, dtype=torch.int32),
        indices=torch.tensor(rows, dtype=torch.int32),
    )
    return problem, CaseRules(_rules_of(forbidden))


def large_vocab(draw: Draw, dtype: torch.dtype) -> Setup:
    """More tokens than float32 can count; of the last 80 some are forbidden. Only the programs of
    the last tiles run: nothing is forbidden before."""
    vocab_size = 2**24 + 40_000 + draw.integer(1, 31)
    logits = lazy_zeros(2, vocab_size, dtype=dtype)
    bitmask = torch.full((1, -(-vocab_size // BITS)), -1, dtype=torch.int32)
    bitmask[0, -3:] = torch.tensor([draw.integer(-(2**31), 2**31 - 1) for _ in range(3)])
    first = BITS * (bitmask.shape[1] - 3)
    forbidden = torch.zeros(2, vocab_size, dtype=torch.bool)
    forbidden[1, first:] = ~allowed_tokens(bitmask[:, -3:], vocab_size - first)[0]
    num_tiles = -(-vocab_size // (BITS * WORDS))
    indices = torch.tensor([1], dtype=torch.int32)
    problem = dict(logits=logits, bitmask=bitmask, indices=indices)
    last = (num_tiles - 2, num_tiles - 1)
    return problem, CaseRules(_rules_of(forbidden), last, axis=1, rest_is_idle=True)


def _rules_of(forbidden: Tensor) -> dict[str, TensorRule]:
    """What is forbidden must be written, nothing else may be, and no logit is read."""
    logits = TensorRule(
        readable=torch.zeros(1, 1, dtype=torch.bool),
        writable=forbidden,
        required=forbidden,
        axes=("row", "token"),
        why="masking needs no logit, only bits",
    )
    return {"logits": logits, "bitmask": TensorRule(axes=("row", "word"))}


def _inside_wider_words(bitmask: Tensor) -> Tensor:
    """The same words as a slice of a wider matrix whose other words allow everything."""
    wide = torch.full((len(bitmask), bitmask.shape[1] + 4), -1, dtype=torch.int32)
    wide[:, 1 : 1 + bitmask.shape[1]] = bitmask
    return wide[:, 1 : 1 + bitmask.shape[1]]


APPLY_TOKEN_BITMASK = (
    Case("word", "one row of 32 tokens: exactly one word", "float32",
         mask(1, 32, batch=1, slices=())),
    Case("one", "one token", "float32", mask(1, 1, batch=1)),
    Case("tail", "33 tokens: a second word with one bit", "float32", mask(2, 33)),
    Case("almost", "31 tokens: the last bit stands for no token", "float16", mask(3, 31)),
    Case("rows", "masked rows in any order, others in between", "bfloat16", mask(None, 200)),
    Case("tile", "1,024 tokens", "float32", mask(2, 1024)),
    Case("over", "1,025 tokens: one more than a tile", "float16", mask(2, 1025)),
    Case("narrow", "fewer words than logits: the rest is forbidden", "float32",
         mask(2, 300, num_words=5)),
    Case("wide", "more words than logits", "bfloat16", mask(2, 70, num_words=6)),
    Case("sliced", "logits and masks are slices", "float32", mask(3, 77)),
    Case("nearly-all", "nearly all tokens are allowed", "float16", mask(2, 500, share=0.99)),
    Case("nearly-none", "nearly no token is allowed", "float32", mask(2, 500, share=0.01)),
    Case("far", "rows 2^30 elements apart", "float16", mask(6, 64, batch=6, far=True)),
    Case("far-masks", "masks 2^30 words apart", "float32", mask(6, 40, batch=6, far_masks=True)),
    Case("hundreds", "600 rows", "bfloat16", mask(600, 37)),
    Case("deep", "rows behind the 32,768th", "float32", mask(9, 40, batch=70_000)),
    Case("many-masks", "5 of 140,000 masks forbid anything", "float16",
         mask(5, 40, idle=139_995)),
    Case("wide-vocab", "270,000 tokens: 264 tiles", "bfloat16", mask(1, 270_000)),
    Case("many-rows", "rows behind the 2^24th", "float16", many_rows),
    Case("large-vocab", "tokens behind the 2^24th", "float16", large_vocab),
    Case("traffic", "4 rows of 4,096 tokens", "float32", mask(4, 4096, batch=4, slices=()),
         graded=True),
    *mixed(
        mask,
        rows={"one masked row": 1, "3 masked rows": 3},
        vocab_size={"64 tokens": 64, "77 tokens": 77, "2,048 tokens": 2048, "1,100 tokens": 1100},
        batch={"of 3": 3, "of 6": 6},
        num_words={"": None, "2 words": 2, "70 words": 70},
        share={"": 0.5, "nearly all allowed": 0.98},
        slices={
            "slices": ("logits", "bitmask"),
            "logits are a slice": ("logits",),
            "masks are a slice": ("bitmask",),
            "contiguous": (),
        },
    ),
)  # fmt: skip

CASES = {"apply_token_bitmask": APPLY_TOKEN_BITMASK}
