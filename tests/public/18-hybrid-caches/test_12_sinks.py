"""Task 18.12: a sink that joins the softmax afterwards, once for all splits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.testing import expect
from mini_vllm.model.mixers.sinks import add_sink, merge_splits


def problem(hy: Any, tokens: int = 3, heads: int = 2, keys: int = 8) -> tuple[Tensor, Tensor]:
    """Scores `[T, H, L]` and values `[T, H, L, 4]`."""
    return 3 * hy.random(tokens, heads, keys), hy.random(tokens, heads, keys, 4, seed=1)


def attend(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Out and lse of attention over some keys."""
    return torch.einsum("thl,thld->thd", scores.softmax(-1), values), scores.logsumexp(-1)


def with_sink(scores: Tensor, values: Tensor, sink: Tensor) -> Tensor:
    """The sink as one more score, whose value is zeros."""
    column = sink[None, :, None].expand(*scores.shape[:2], 1).to(scores.dtype)
    shares = torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
    return torch.einsum("thl,thld->thd", shares, values)


def test_18_12_a_sink_takes_its_share(hy: Any) -> None:
    """Three scores 0 and a sink of 0: a quarter of the softmax is the sink's."""
    out, lse = torch.ones(1, 1, 4), torch.tensor([[3.0]]).log()
    got = add_sink(out, lse, torch.tensor([1.0]).log())
    at = "e^lse is 3, e^sink is 1: three quarters are left"
    expect([round(x, 5) for x in got.flatten().tolist()], [0.75] * 4, at=at)


def test_18_12_the_same_as_in_the_softmax(hy: Any) -> None:
    """A sink for each head, of both signs."""
    scores, values = problem(hy)
    sink = torch.tensor([1.5, -2.0], dtype=torch.float64)
    out, lse = attend(scores, values)
    right = with_sink(scores, values, sink)
    hy.near(add_sink(out, lse, sink), right, "out with sinks of 1.5 and -2", 1e-6)


def test_18_12_any_size_of_scores(hy: Any) -> None:
    """e^1000 is no number of float32, but the quotient is one: use the difference."""
    out = torch.ones(3, 1, 2)
    got = add_sink(out, torch.tensor([[1000.0], [-1000.0], [1000.0]]), torch.tensor([999.0]))
    at = "lse 1000, -1000, 1000, sink 999: what is left of 1"
    expect([round(x, 4) for x in got[:, 0, 0].tolist()], [0.7311, 0.0, 0.7311], at=at)
    none = add_sink(out, torch.zeros(3, 1), torch.tensor([-torch.inf]))
    hy.near(none, out, "a sink of -inf changes nothing")


def test_18_12_the_result_has_the_dtype_of_out(hy: Any) -> None:
    """lse and sinks are float32, or what the checkpoint has."""
    out = torch.ones(1, 2, 4, dtype=torch.bfloat16)
    got = add_sink(out, torch.zeros(1, 2), torch.zeros(2, dtype=torch.bfloat16))
    expect(str(got.dtype), "torch.bfloat16", at="out in bfloat16")
    partial = torch.ones(1, 2, 3, 4, dtype=torch.bfloat16)
    merged, _ = merge_splits(partial, torch.zeros(1, 2, 3))
    expect(str(merged.dtype), "torch.bfloat16", at="parts in bfloat16")


def splits(hy: Any, scores: Tensor, values: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Out `[T, H, S, D]` and lse `[T, H, S]` of attention over parts of the keys."""
    parts = zip(scores.split(sizes, dim=-1), values.split(sizes, dim=2), strict=True)
    outs, lses = zip(*(attend(*part) for part in parts), strict=True)
    return torch.stack(outs, dim=2), torch.stack(lses, dim=2)


def test_18_12_splits_weigh_as_their_keys_do(hy: Any) -> None:
    """Keys in parts of 5, 1 and 2: the whole, not an average of the parts."""
    scores, values = problem(hy)
    right, right_lse = attend(scores, values)
    out, lse = merge_splits(*splits(hy, scores, values, [5, 1, 2]))
    hy.near(out, right, "merged outputs of 3 parts", 1e-12)
    hy.near(lse, right_lse, "lse of all parts together", 1e-12)


def test_18_12_an_empty_part_counts_for_nothing(hy: Any) -> None:
    """Its lse is -inf, and its outputs are zeros."""
    scores, values = problem(hy)
    partial, lse = splits(hy, scores, values, [5, 3])
    right, right_lse = attend(scores, values)
    partial = torch.cat((partial, torch.zeros_like(partial[:, :, :1])), dim=2)
    lse = torch.cat((lse, torch.full_like(lse[:, :, :1], -torch.inf)), dim=2)
    out, merged = merge_splits(partial, lse)
    hy.near(out, right, "two parts and an empty one", 1e-12)
    hy.near(merged, right_lse, "lse of two parts and an empty one", 1e-12)


def test_18_12_parts_of_any_size(hy: Any) -> None:
    """lse 1000 and 999: weights 0.7311 and 0.2689, though no e^1000 is a number."""
    partial = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1)
    out, lse = merge_splits(partial, torch.tensor([1000.0, 999.0]).view(1, 1, 2))
    expect(round(float(out), 4), 0.7311, at="the first part's weight, lse 1000 against 999")
    expect(round(float(lse), 3), 1000.313, at="lse of both")


def test_18_12_the_sink_counts_once(hy: Any) -> None:
    """Merged first, then the sink: not once in each part."""
    scores, values = problem(hy)
    sink = torch.tensor([1.5, 0.5], dtype=torch.float64)
    out = add_sink(*merge_splits(*splits(hy, scores, values, [3, 3, 2])), sink)
    hy.near(out, with_sink(scores, values, sink), "3 parts merged, then a sink", 1e-6)


def test_18_12_arguments_stay_as_they_are(hy: Any) -> None:
    """The output without a sink is the caller's."""
    out, lse, sink = torch.ones(1, 1, 2), torch.tensor([[0.5]]), torch.tensor([0.5])
    add_sink(out, lse, sink)
    expect([out.tolist(), lse.tolist(), sink.tolist()], [[[[1.0, 1.0]]], [[0.5]], [0.5]],
           at="out, lse and sink after the call")  # fmt: skip
