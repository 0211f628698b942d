"""Routers on random logits beside numpy, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

many = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)

ROUTE = """
import torch
from mini_vllm.model.moe import routers

x = torch.tensor(logits, dtype=getattr(torch, dtype))
before = x.clone()
bias = None if bias is None else torch.tensor(bias)
if name == "grouped_topk":
    options["e_score_correction_bias"] = bias
weights, ids = getattr(routers, name)(x, k, **options)
told = [weights, ids, str(weights.dtype), bool((x == before).all())]
if bias is not None:
    told.append(bias)
"""


def apart(rng: np.random.Generator, tokens: int, experts: int) -> np.ndarray:
    """Logits of which no two of a token are near one another."""
    steps = np.array([rng.permutation(experts) for _ in range(tokens)]) - experts / 2
    return (steps * 0.25 + rng.uniform(0, 0.05, steps.shape)).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def same(found: list[Any], ids: np.ndarray, weights: np.ndarray) -> None:
    """The same experts with the same weights, in any order; float32; the logits are unchanged."""
    mine, theirs = np.asarray(found[0], dtype=np.float64), np.asarray(found[1])
    assert found[2] == "torch.float32" and found[3] is True
    assert theirs.shape == ids.shape and mine.shape == ids.shape
    order, wanted = theirs.argsort(-1), ids.argsort(-1)
    mine, theirs = (np.take_along_axis(x, order, -1) for x in (mine, theirs))
    ids, weights = (np.take_along_axis(x, wanted, -1) for x in (ids, weights))
    assert np.array_equal(theirs, ids)
    assert np.allclose(mine, weights, rtol=1e-5, atol=1e-7)


@many
@given(seed=seeds, tokens=st.integers(1, 6), experts=st.integers(1, 20), renormalize=st.booleans())
def test_17_4_the_most_probable(
    ask: Any, seed: int, tokens: int, experts: int, renormalize: bool
) -> None:
    """Any number of experts and of chosen ones, also all of them."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, experts + 1))
    logits = apart(rng, tokens, experts) + np.float32(rng.choice([0, 200, -200]))
    ids = (-logits).argsort(-1)[:, :k]
    weights = np.take_along_axis(softmax(logits.astype(np.float64)), ids, -1)
    if renormalize:
        weights /= weights.sum(-1, keepdims=True)
    found = ask(ROUTE, name="fused_topk", logits=logits.tolist(), k=k, dtype="float32",
                options={"renormalize": renormalize}, bias=None)  # fmt: skip
    same(found, ids, weights)


@many
@given(seed=seeds, tokens=st.integers(1, 6), experts=st.integers(1, 20))
def test_17_4_softmax_over_the_chosen(ask: Any, seed: int, tokens: int, experts: int) -> None:
    """Of the k logits alone; also of large ones."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, experts + 1))
    logits = apart(rng, tokens, experts) + np.float32(rng.choice([0, 200, -200]))
    ids = (-logits).argsort(-1)[:, :k]
    weights = softmax(np.take_along_axis(logits.astype(np.float64), ids, -1))
    found = ask(ROUTE, name="topk_softmax", logits=logits.tolist(), k=k, dtype="float32",
                options={}, bias=None)  # fmt: skip
    same(found, ids, weights)


@pytest.mark.parametrize("name", ["fused_topk", "topk_softmax"])
def test_17_4_one_expert_a_token(ask: Any, name: str) -> None:
    """k is 1: the only weight that is divided by its sum is 1."""
    options = {"renormalize": True} if name == "fused_topk" else {}
    found = ask(ROUTE, name=name, logits=[[0.5, 2.0, 1.0], [3.0, -1.0, 0.0]], k=1, dtype="float32",
                options=options, bias=None)  # fmt: skip
    same(found, np.array([[1], [0]]), np.ones((2, 1)))


def test_17_4_one_of_thousands(ask: Any) -> None:
    """A share of 1 / 4096 is 1 when it is divided by itself, and by nothing more."""
    found = ask(ROUTE, name="fused_topk", logits=[[0.0] * 4096], k=1, dtype="float32",
                options={"renormalize": True}, bias=None)  # fmt: skip
    assert np.allclose(found[0], [[1.0]], rtol=1e-5)


TOGETHER = """
import torch
from labkit.inside.cost import steps
from mini_vllm.model.moe import routers

generator = torch.Generator().manual_seed(1)
logits = torch.randn(512, 256, generator=generator)
told = [steps(routers.fused_topk, logits, 8, True), steps(routers.topk_softmax, logits, 8)]
"""


def test_17_4_all_tokens_together(ask: Any) -> None:
    """512 tokens, 256 experts: no loop over tokens or experts."""
    for name, python in zip(("fused_topk", "topk_softmax"), ask(TOGETHER), strict=True):
        assert python < 1500, (
            f"{name} takes {python:,} steps of Python for 512 tokens, at most 1,500 are allowed;"
            " route all tokens in one operation"
        )


def half_precision(ask: Any, name: str, options: dict[str, Any]) -> None:
    """Logits of bfloat16, whose softmax in bfloat16 would be off by a hundredth."""
    logits = [[3.0, 2.984375, 1.0, -2.0], [0.5, 0.25, 8.0, 7.9375]]
    ids = np.array([[0, 1], [2, 3]])
    weights = np.take_along_axis(softmax(np.array(logits)), ids, -1)
    if name == "topk_softmax":
        weights /= weights.sum(-1, keepdims=True)
    found = ask(ROUTE, name=name, logits=logits, k=2, dtype="bfloat16", options=options, bias=None)
    same(found, ids, weights)


@pytest.mark.parametrize("name", ["fused_topk", "topk_softmax"])
def test_17_4_half_precision_is_widened_first(ask: Any, name: str) -> None:
    """The softmax is one of float32 numbers."""
    half_precision(ask, name, {"renormalize": False} if name == "fused_topk" else {})


def test_17_5_half_precision_is_widened_first(ask: Any) -> None:
    """The scores are float32 numbers."""
    half_precision(ask, "grouped_topk", {"renormalize": False})


WIDE = np.array([[1.5, -0.25, 0.75, 1.0]])
"""Logits that are float64."""


@pytest.mark.parametrize("name", ["fused_topk", "topk_softmax"])
def test_17_4_weights_are_float32_of_wide_logits_too(ask: Any, name: str) -> None:
    """Weights are float32, whatever the logits are."""
    options = {"renormalize": False} if name == "fused_topk" else {}
    ids = np.array([[0, 3]])
    weights = softmax(WIDE)[:, [0, 3]]
    if name == "topk_softmax":
        weights /= weights.sum(-1, keepdims=True)
    found = ask(ROUTE, name=name, logits=WIDE.tolist(), k=2, dtype="float64", options=options,
                bias=None)  # fmt: skip
    same(found, ids, weights)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_17_5_weights_are_float32_of_wide_logits_too(ask: Any, scoring: str) -> None:
    """The same of groups."""
    scores = softmax(WIDE) if scoring == "softmax" else 1 / (1 + np.exp(-WIDE))
    options = dict(renormalize=False, num_expert_group=2, topk_group=2, scoring_func=scoring)
    found = ask(ROUTE, name="grouped_topk", logits=WIDE.tolist(), k=2, dtype="float64",
                options=options, bias=None)  # fmt: skip
    same(found, np.array([[0, 3]]), scores[:, [0, 3]])


def in_best(choice: np.ndarray, groups: int, best: int, judged_by: int) -> np.ndarray:
    split = choice.reshape(len(choice), groups, -1)
    marks = np.sort(split, -1)[:, :, -judged_by:].sum(-1)
    chosen = (-marks).argsort(-1)[:, :best]
    inside = np.zeros((len(choice), groups), bool)
    np.put_along_axis(inside, chosen, True, -1)
    return inside.repeat(split.shape[-1], -1)


@many
@given(
    seed=seeds,
    groups=st.integers(1, 6),
    size=st.integers(2, 6),
    scoring=st.sampled_from(["softmax", "sigmoid"]),
    biased=st.booleans(),
    renormalize=st.booleans(),
)
def test_17_5_groups_scores_and_biases(
    ask: Any, seed: int, groups: int, size: int, scoring: str, biased: bool, renormalize: bool
) -> None:
    """V2 and V3, with biases that are negative, and any number of groups allowed."""
    rng = np.random.default_rng(seed)
    best = int(rng.integers(1, groups + 1))
    k = int(rng.integers(1, best * size + 1))
    logits = apart(rng, 4, groups * size) / 2
    wide = logits.astype(np.float64)
    scores = 1 / (1 + np.exp(-wide)) if scoring == "sigmoid" else softmax(wide)
    bias = rng.uniform(-3, 1, groups * size).astype(np.float32) if biased else None
    choice = scores if bias is None else scores + bias
    allowed = in_best(choice, groups, best, 2 if biased else 1)
    ids = (-np.where(allowed, choice, -np.inf)).argsort(-1)[:, :k]
    weights = np.take_along_axis(scores, ids, -1)
    if renormalize:
        weights /= weights.sum(-1, keepdims=True)
    factor = float(rng.choice([1.0, 2.5]))
    options = dict(renormalize=renormalize, num_expert_group=groups, topk_group=best,
                   scoring_func=scoring, routed_scaling_factor=factor)  # fmt: skip
    found = ask(ROUTE, name="grouped_topk", logits=logits.tolist(), k=k, dtype="float32",
                options=options, bias=None if bias is None else bias.tolist())  # fmt: skip
    same(found, ids, weights * factor)
    if bias is not None:
        assert np.array_equal(found[4], bias), "the bias was changed"


def test_17_5_one_group_has_no_limit(ask: Any) -> None:
    """One expert in all: there are no two best ones to add up."""
    options = dict(renormalize=False, scoring_func="sigmoid")
    found = ask(ROUTE, name="grouped_topk", logits=[[0.0]], k=1, dtype="float32", options=options,
                bias=[-5.0])  # fmt: skip
    same(found, np.array([[0]]), np.array([[0.5]]))


def test_17_5_one_expert_of_the_best_group(ask: Any) -> None:
    """The best expert of all lies in a group whose two best are worth less."""
    options = dict(renormalize=False, num_expert_group=2, topk_group=1, scoring_func="sigmoid")
    found = ask(ROUTE, name="grouped_topk", logits=[[2.0, -3.0, 1.5, 1.0]], k=1, dtype="float32",
                options=options, bias=[0.0] * 4)  # fmt: skip
    same(found, np.array([[2]]), np.array([[1 / (1 + np.exp(-1.5))]]))


BEST = """
import torch
from mini_vllm.model.moe.routers import in_best_groups

scores = torch.tensor(scores)
before = scores.clone()
found = in_best_groups(scores, groups, best, judged_by)
told = [found.int(), str(found.dtype), bool((scores == before).all())]
"""


@many
@given(seed=seeds, groups=st.integers(1, 8), size=st.integers(1, 6), tokens=st.integers(1, 5))
def test_17_5_best_groups(ask: Any, seed: int, groups: int, size: int, tokens: int) -> None:
    """Any sizes, also where all groups are among the best, and negative scores."""
    rng = np.random.default_rng(seed)
    best, judged_by = int(rng.integers(1, groups + 1)), int(rng.integers(1, size + 1))
    scores = apart(rng, tokens, groups * size)
    found, dtype, same_scores = ask(
        BEST, scores=scores.tolist(), groups=groups, best=best, judged_by=judged_by
    )
    assert np.array_equal(found, in_best(scores.astype(np.float64), groups, best, judged_by))
    assert dtype == "torch.bool" and same_scores is True


@pytest.mark.parametrize("best", [1, 2, 3])
def test_17_5_no_more_groups_than_the_best(ask: Any, best: int) -> None:
    """Three groups are equal and one is worse: of the equal ones so many count as are wanted."""
    scores = [[0.5, 0.25, 0.25, 0.5, 0.1, 0.0, 0.5, 0.25]]
    found = ask(BEST, scores=scores, groups=4, best=best, judged_by=2)[0]
    groups = np.array(found).reshape(4, 2)
    assert groups[2].sum() == 0 and groups.sum() == 2 * best and set(groups.sum(1)) <= {0, 2}


@pytest.mark.parametrize("best", [0, 1, 2, 3])
def test_17_5_biases_are_added_in_float32(ask: Any, best: int) -> None:
    """Equal logits in half precision: a bias smaller than its steps decides all the same."""
    options = dict(renormalize=False, scoring_func="sigmoid")
    bias = [1e-4 if expert == best else 5e-5 for expert in range(4)]
    found = ask(ROUTE, name="grouped_topk", logits=[[1.0] * 4], k=1, dtype="bfloat16",
                options=options, bias=bias)  # fmt: skip
    same(found, np.array([[best]]), np.array([[1 / (1 + np.exp(-1.0))]]))


LARGE = """
import torch
from labkit.inside.cost import steps
from mini_vllm.model.moe import routers

generator = torch.Generator().manual_seed(1)
logits = torch.randn(512, 256, generator=generator)
bias = torch.zeros(256)
options = dict(num_expert_group=8, topk_group=4, scoring_func="sigmoid")
weights, ids = routers.grouped_topk(logits, 8, True, **options, e_score_correction_bias=bias)
groups = ids // 32
told = [
    weights.sum(-1).double(), max(len(set(row)) for row in groups.tolist()),
    steps(routers.grouped_topk, logits, 8, True, **options, e_score_correction_bias=bias),
]
"""


def test_17_5_deepseek_v3(ask: Any) -> None:
    """512 tokens, 256 experts in 8 groups of which 4 count: no loop over tokens or experts."""
    sums, groups, python = ask(LARGE)
    assert np.allclose(sums, 1, atol=1e-5), "a token's weights, renormalised, do not add up to 1"
    assert groups <= 4, f"a token has experts of {groups} groups, at most 4 are allowed"
    assert python < 3000, (
        f"{python:,} steps of Python for 512 tokens, at most 3,000 are allowed; route all tokens in"
        " one operation"
    )
