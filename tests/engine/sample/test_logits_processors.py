"""Each step from logits to a distribution, against transformers and against slow obvious loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mini_vllm.sample.logits_processors import (
    NEG_INF,
    apply_allowed_token_ids,
    apply_logit_bias,
    apply_min_p,
    apply_min_tokens,
    apply_penalties,
    apply_temperature,
    apply_top_k,
    apply_top_k_top_p,
    apply_top_p,
)

torch.set_num_threads(1)


def distinct_logits(seed: int, rows: int, vocab: int) -> torch.Tensor:
    """Logits without ties, in random order."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(rows, vocab, generator=generator).argsort(dim=-1)
    return (order.float() / vocab - 0.5) * torch.empty(rows, 1).uniform_(1, 20, generator=generator)


def kept(logits: torch.Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero().flatten().tolist() for row in logits]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 400),
    data=st.data(),
)
def test_filters_equal_transformers_row_by_row(seed, vocab, data):
    """Every row has its own value; transformers does one row at a time."""
    rows = 4
    logits = distinct_logits(seed, rows, vocab)
    before = logits.clone()
    temperature = data.draw(st.lists(st.floats(0.05, 5), min_size=rows, max_size=rows))
    top_k = data.draw(st.lists(st.integers(1, vocab), min_size=rows, max_size=rows))
    top_p = data.draw(st.lists(st.floats(0.01, 0.999), min_size=rows, max_size=rows))
    min_p = data.draw(st.lists(st.floats(0.001, 1), min_size=rows, max_size=rows))
    cases = [
        (apply_temperature, temperature, TemperatureLogitsWarper),
        (apply_top_k, top_k, TopKLogitsWarper),
        (apply_top_p, top_p, TopPLogitsWarper),
        (apply_min_p, min_p, MinPLogitsWarper),
    ]
    for function, values, warper in cases:
        ours = function(logits, torch.tensor(values))
        for row, value in enumerate(values):
            theirs = warper(value)(None, logits[row : row + 1])
            if function is apply_temperature:
                torch.testing.assert_close(ours[row : row + 1], theirs)
                continue
            different = set(kept(ours[row : row + 1])[0]) ^ set(kept(theirs)[0])
            # Both sum in float32 in different orders, so one token exactly at the limit may differ.
            assert not different or near_limit(function, logits[row], value, different)
    assert torch.equal(logits, before), "the input was changed"


def near_limit(function, logits, value, different) -> bool:
    probs = logits.double().softmax(-1)
    if len(different) != 1:
        return False
    (token,) = different
    if function is apply_top_p:
        mass_before = probs[probs > probs[token]].sum()
        return bool((mass_before - value).abs() < 1e-5)
    return function is apply_min_p and bool((probs[token] / probs.max() - value).abs() < 1e-5)


@pytest.mark.parametrize("vocab", [50, 5000])
@pytest.mark.parametrize("scale", [0.1, 5.0])
def test_top_p_keeps_the_smallest_sufficient_set(vocab, scale):
    """Flat distributions need the full sort, peaked ones only the largest 128."""
    torch.manual_seed(0)
    logits = torch.randn(6, vocab) * scale
    top_p = torch.tensor([0.1, 0.5, 0.9, 0.99, 1.0, 1e-6])
    probs = logits.double().softmax(-1)
    result = apply_top_p(logits, top_p)
    for row, tokens in enumerate(kept(result)):
        mass = probs[row, tokens].sum()
        if top_p[row] == 1:
            assert len(tokens) == vocab
            continue
        assert mass >= top_p[row] - 1e-5
        assert mass - probs[row, tokens].min() < top_p[row] + 1e-5, "one token could go"
        removed = probs[row][~result[row].isfinite()]
        assert not len(removed) or probs[row, tokens].min() >= removed.max()


def test_top_p_boundary_token_stays():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for top_p, expected in [(0.4, [0]), (0.6, [0, 1]), (0.81, [0, 1, 2]), (1e-9, [0])]:
        assert kept(apply_top_p(logits, torch.tensor([top_p]))) == [expected]


def test_top_k_values_and_off_rows():
    logits = torch.tensor([[3.0, 1.0, 2.0]]).repeat(5, 1)
    result = apply_top_k(logits, torch.tensor([0, 1, 2, 3, 99]))
    assert kept(result) == [[0, 1, 2], [0], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert torch.equal(apply_top_k(logits, torch.zeros(5, dtype=torch.int64)), logits)


def test_ties_at_the_limit_all_stay():
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    assert kept(apply_top_k(logits, torch.tensor([1]))) == [[1, 2, 3]]
    assert kept(apply_top_p(logits, torch.tensor([0.3]))) == [[1, 2, 3]]


def test_top_p_counts_what_top_k_left():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    two, p = torch.tensor([2]), torch.tensor([0.5])
    assert kept(apply_top_p(logits, p)) == [[0, 1]]
    assert kept(apply_top_k_top_p(logits, two, p)) == [[0]]  # 0.4 / 0.7 is above 0.5
    assert kept(apply_top_k_top_p(logits, two, None)) == [[0, 1]]
    assert apply_top_k_top_p(logits, None, None) is logits


def test_min_p():
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log().repeat(4, 1)
    result = apply_min_p(logits, torch.tensor([0.0, 0.5, 0.7, 1.0]))
    assert kept(result) == [[0, 1, 2], [0, 1], [0], [0]]


def test_greedy_rows_keep_their_logits():
    logits = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    assert apply_temperature(logits, torch.tensor([0.0, 0.5])).tolist() == [[1, 2], [2, 4]]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    prompts=st.lists(st.lists(st.integers(0, 19), max_size=12), min_size=3, max_size=3),
    outputs=st.lists(st.lists(st.integers(0, 19), max_size=12), min_size=3, max_size=3),
    repetition=st.lists(st.sampled_from([1.0, 0.5, 1.3, 2.0]), min_size=3, max_size=3),
    presence=st.lists(st.sampled_from([0.0, -2.0, 0.7]), min_size=3, max_size=3),
    frequency=st.lists(st.sampled_from([0.0, -1.0, 0.4]), min_size=3, max_size=3),
)
def test_penalties(seed, prompts, outputs, repetition, presence, frequency):
    """Repetition against transformers, the other two against a loop over the output."""
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(seed))
    expected = logits.clone()
    counts = torch.zeros(3, 20)
    for row in range(3):
        used = torch.tensor([prompts[row] + outputs[row]], dtype=torch.int64)
        if used.numel() and repetition[row] != 1:
            processor = RepetitionPenaltyLogitsProcessor(repetition[row])
            expected[row] = processor(used, logits[row : row + 1])
        for token in outputs[row]:
            expected[row, token] -= frequency[row]
            counts[row, token] += 1
        for token in set(outputs[row]):
            expected[row, token] -= presence[row]
    pairs = [(r, t) for r in range(3) for t in prompts[r] + outputs[r]]
    rows = torch.tensor([r for r, _ in pairs], dtype=torch.int64)
    tokens = torch.tensor([t for _, t in pairs], dtype=torch.int64)
    values = (torch.tensor(v) for v in (repetition, presence, frequency))
    result = apply_penalties(logits, rows, tokens, counts, *values)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


def test_masks_and_bias():
    logits = torch.zeros(2, 3)
    allowed = torch.tensor([[True, False, True], [True, True, True]])
    assert kept(apply_allowed_token_ids(logits, allowed)) == [[0, 2], [0, 1, 2]]
    rows, tokens = torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1])
    biased = apply_logit_bias(logits, rows, tokens, torch.tensor([1.0, 2.0, -3.0]))
    assert biased.tolist() == [[0, 0, 1], [2, -3, 0]]
    until = torch.tensor([2, 2, 3])
    for index, expected in [(1, [[0, 1], [2]]), (2, [[0, 1, 2], [0, 2]]), (3, [[0, 1, 2]] * 2)]:
        result = apply_min_tokens(logits, rows, tokens, until, torch.tensor([index, index]))
        assert kept(result) == expected, index
    assert torch.equal(logits, torch.zeros(2, 3)), "the input was changed"


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), bad=st.sampled_from([NEG_INF, float("nan"), float("inf")]))
def test_filters_keep_the_most_likely_token_and_do_not_hide_nan(seed, bad):
    logits = distinct_logits(seed, 3, 200)
    logits[1, seed % 200] = bad
    ones = torch.ones(3)
    for result in (
        apply_min_p(logits, ones * 0.5),
        apply_top_k(logits, torch.ones(3, dtype=torch.int64)),
        apply_top_p(logits, ones * 0.5),
    ):
        for row in (0, 2):
            assert result[row].argmax() == logits[row].argmax()
        if bad != bad:
            assert result[1].isnan().any()
