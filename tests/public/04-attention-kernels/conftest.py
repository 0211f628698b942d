"""Builders for the tests of phase 04. The story: ana, ben and cleo chat with one service; their
pages lie in any order in one cache. Whatever a kernel may not read holds NaN, and unused entries of
a block table name a block that no cache has.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.kernels.cases import decode as decode_cases
from labkit.kernels.cases import prefill as prefill_cases
from labkit.kernels.cases.draw import Draw
from labkit.kernels.cases.pages import Pages
from labkit.kernels.direct import expect_close, solve
from labkit.kernels.verdict import oracles
from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.kernels.attention import PAGED_DECODE, PAGED_PREFILL
from mini_vllm.kernels.launch import KernelSpec

SHAPE = {"group": 1, "kv_heads": 1, "dim": 16, "block_size": 4}


TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}
"""Half precision rounds weights before they meet the values, and the output."""


def decode_problem(
    seq_lens: Sequence[int], splits: int = 0, dtype: torch.dtype = torch.float32, **shape: Any
) -> tuple[Any, Any]:
    """One new token for each context length, and what a kernel may read of it."""
    make = decode_cases.decode(seq_lens, **(SHAPE | shape), splits=splits)
    return make(Draw(4, "public", f"{seq_lens}{_named(shape)}"), dtype)


def _named(shape: dict[str, Any]) -> dict[str, Any]:
    """With a function's name in its place: its address would draw other numbers in each run."""
    return {key: getattr(value, "__name__", value) for key, value in shape.items()}


def check_decode(at: str, seq_lens: Sequence[int], **shape: Any) -> None:
    """Run the learner's decode kernel and compare it with attention by its definition."""
    __tracebackhide__ = True
    problem, rules = decode_problem(seq_lens, **shape)
    solve(PAGED_DECODE, problem, rules)
    expected = oracles.paged_decode(problem)["output"].float()
    compare(problem["output"], expected, ("request", "head", "dim"), at)


def compare(yours: Tensor, expected: Tensor, axes: tuple[str, ...], at: str) -> None:
    """Number by number, as closely as the output's type allows."""
    __tracebackhide__ = True
    expect_close(yours.float(), expected, axes=axes, at=at, tolerance=TOLERANCE[yours.dtype])


def rising(paged: Pages, problem: dict[str, Any]) -> None:
    """Queries and keys with the score p / 5 at position p, so that each tile has a new maximum."""
    problem["query"].fill_(1.0)
    unit = 1 / (5 * problem["scale"] * paged.key.shape[-1])
    for row, length in enumerate(paged.seq_lens):
        for position in range(length):
            paged.key[paged.place(row, position)] = unit * position


def check_prefill(
    at: str,
    requests: Sequence[tuple[int, int]],
    dtype: torch.dtype = torch.float32,
    **shape: Any,
) -> None:
    """The same for prefill; requests are (new tokens, tokens computed before)."""
    __tracebackhide__ = True
    make = prefill_cases.prefill(requests, **(SHAPE | shape))
    problem, rules = make(Draw(4, "public", f"{requests}{_named(shape)}"), dtype)
    solve(PAGED_PREFILL, problem, rules)
    expected = oracles.paged_prefill(problem)["output"].float()
    compare(problem["output"], expected, ("token", "head", "dim"), at)


def run_kernel(spec: KernelSpec, **problem: Any) -> None:
    """Solve a problem whose every input may be read."""
    __tracebackhide__ = True
    solve(spec, problem)


def batch(
    requests: Sequence[tuple[int, int]], heads: int = 2, kv_heads: int = 1, dim: int = 4
) -> tuple[Tensor, Tensor, AttentionMetadata]:
    """Query `[T, heads, dim]`, cache and metadata of (new tokens, tokens before) a request. Blocks
    of 4 tokens in reversed order; slots without a token hold NaN."""
    torch.manual_seed(4)
    lens = [(new, new + before) for new, before in requests]
    needs = [-(-total // 4) for _, total in lens]
    ids = list(range(sum(needs), 0, -1))
    tables = [[ids.pop(0) for _ in range(need)] for need in needs]
    cache = torch.full((2, sum(needs) + 1, 4, kv_heads, dim), float("nan"))
    for (_, total), table in zip(lens, tables, strict=True):
        for position in range(total):
            cache[:, table[position // 4], position % 4] = torch.randn(2, kv_heads, dim)
    new, seq_lens = zip(*lens, strict=True)
    query = torch.randn(sum(new), heads, dim)
    return query, cache, AttentionMetadata.from_lists(new, seq_lens, tables, 4)


@pytest.fixture
def desk() -> SimpleNamespace:
    """The builders above, by name."""
    return SimpleNamespace(
        decode_problem=decode_problem,
        rising=rising,
        check_decode=check_decode,
        check_prefill=check_prefill,
        run=run_kernel,
        batch=batch,
    )
