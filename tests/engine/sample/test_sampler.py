"""The sampler: distribution, seeds, mixed batches, logprobs, rows that fail."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.sample import Sampler, SamplingRow, make_sampling_metadata
from mini_vllm.sample.sampler import (
    compute_logprobs,
    compute_prompt_logprobs,
    gather_logprobs,
    greedy_sample,
    mix64,
    sample_from_logits,
    uniform_numbers,
)
from mini_vllm.sampling_params import (
    MAX_FLOAT32,
    MIN_FLOAT32,
    MIN_TEMPERATURE,
    SamplingParams,
)

torch.set_num_threads(1)
GREEDY = SamplingParams(temperature=0)


def sample(logits, rows, **kwargs):
    metadata = make_sampling_metadata(rows, logits.shape[-1], **kwargs)
    return Sampler()(logits, metadata)


def tokens(logits, rows) -> list[int]:
    return sample(logits, rows).sampled_token_ids.tolist()


def row(params=GREEDY, prompt=(1,), output=(), eos=()) -> SamplingRow:
    return SamplingRow(params, list(prompt), list(output), eos)


def chi_square_is_plausible(counts: torch.Tensor, expected: torch.Tensor) -> bool:
    """Within 5 standard deviations of the mean of the chi-square distribution, on both sides."""
    assert expected.min() >= 5, "too few samples for the test"
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    freedom = len(counts) - 1
    print(f"chi-square {statistic:.1f} with {freedom} degrees of freedom")
    return abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


# ---- random numbers -------------------------------------------------------------------------


def test_mix64_is_splitmix64():
    """The first outputs of splitmix64 seeded with 0, as published with its reference code."""
    golden = 0x9E3779B97F4A7C15
    states = [(golden * step) % 2**64 for step in (1, 2, 3)]
    signed = torch.tensor([s - 2**64 if s >= 2**63 else s for s in states])
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [value % 2**64 for value in mix64(signed).tolist()] == expected


@pytest.mark.parametrize("walk", ["index", "seed", "both"])
@pytest.mark.parametrize("bins", [16, 1000])
def test_uniform_numbers_are_uniform(walk, bins):
    """Along the output of one request, across neighbouring seeds, and over a grid of both."""
    count = 200_000
    steps = torch.arange(count)
    zero = torch.zeros_like(steps)
    seeds, index = {
        "index": (zero + 7, steps),
        "seed": (steps, zero + 3),
        "both": (steps // 450, steps % 450),
    }[walk]
    numbers = uniform_numbers(seeds, index)
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = torch.bincount((numbers * bins).long(), minlength=bins).double()
    assert chi_square_is_plausible(counts, torch.full((bins,), count / bins).double())


@pytest.mark.parametrize(("seed_step", "index_step"), [(0, 1), (1, 0), (1, 1), (1, -1), (0, 64)])
def test_neighbouring_numbers_are_independent(seed_step, index_step):
    """Pairs fill a 20 x 20 grid evenly."""
    grid = torch.arange(160_000)
    seeds, index = grid // 400, 100 + grid % 400
    first = (uniform_numbers(seeds, index) * 20).long()
    second = (uniform_numbers(seeds + seed_step, index + index_step) * 20).long()
    counts = torch.bincount(first * 20 + second, minlength=400).double()
    assert chi_square_is_plausible(counts, torch.full((400,), 400.0).double())


# ---- distribution ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7, "top_k": 5},
        {"top_p": 0.8},
        {"top_k": 8, "top_p": 0.7, "min_p": 0.1},
    ],
)
def test_samples_follow_the_distribution(params):
    """30,000 tokens of one seeded request, against the filters done by hand in float64."""
    torch.manual_seed(0)
    logits = torch.randn(20)
    count = 30_000
    rows = [row(SamplingParams(seed=1, **params))] * count
    metadata = make_sampling_metadata(rows, 20)
    metadata.num_output_tokens = torch.arange(count)
    sampled = Sampler()(logits.expand(count, -1), metadata).sampled_token_ids
    counts = torch.bincount(sampled, minlength=20).double()

    probs = (logits.double() / params.get("temperature", 1)).softmax(-1)
    probs[probs < params.get("min_p", 0) * probs.max()] = 0
    order = probs.argsort(descending=True)
    probs[order[params.get("top_k", 20) :]] = 0
    probs /= probs.sum()
    if (top_p := params.get("top_p")) is not None:
        before = probs[order].cumsum(0) - probs[order]
        probs[order[before >= top_p]] = 0
    expected = probs / probs.sum() * count
    assert counts[expected == 0].sum() == 0, "a token that is ruled out was sampled"
    assert chi_square_is_plausible(counts[expected > 0], expected[expected > 0])


def test_zero_probability_is_never_sampled():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    uniform = torch.tensor([0.0, 0.25, 0.4999999, 0.5, 0.75, 1 - 2**-24])
    sampled = sample_from_logits(logits.expand(6, -1), uniform)
    assert sampled.tolist() == [1, 1, 1, 3, 3, 3]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), vocab=st.integers(1, 300))
def test_the_ends_of_the_range_give_legal_tokens(seed, vocab):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, vocab, generator=generator) * 30
    logits[torch.rand(2, vocab, generator=generator) < 0.5] = -math.inf
    logits[:, seed % vocab] = 0.0
    sampled = sample_from_logits(logits, torch.tensor([0.0, 1 - 2**-24]))
    assert logits.gather(1, sampled.unsqueeze(1)).isfinite().all()


# ---- seeds do not depend on the batch -------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_a_seeded_row_does_not_depend_on_the_batch(seed, data):
    """The same request alone, in a batch of other kinds of rows, and in another order."""
    rng = random.Random(seed)
    kinds = [
        {}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2},
        {"temperature": 0.5, "top_k": 7, "top_p": 0.9}, {"repetition_penalty": 1.5},
        {"allowed_token_ids": [1, 2, 3]}, {"logit_bias": {4: 3.0}}, {"min_tokens": 9},
        {"logprobs": 2},
    ]  # fmt: skip
    logits = torch.randn(6, 150, generator=torch.Generator().manual_seed(seed))
    rows = [
        row(
            SamplingParams(seed=rng.randrange(10), **rng.choice(kinds)),
            prompt=[rng.randrange(150) for _ in range(4)],
            output=[rng.randrange(150) for _ in range(rng.randrange(12))],
            eos=[0],
        )
        for _ in range(6)
    ]
    together = tokens(logits, rows)
    alone = [tokens(logits[i : i + 1], [rows[i]])[0] for i in range(6)]
    assert together == alone
    order = data.draw(st.permutations(range(6)))
    assert tokens(logits[list(order)], [rows[i] for i in order]) == [alone[i] for i in order]


def test_advancing_equals_building_again():
    """Also after preemption, when the engine builds the metadata from the saved tokens."""
    torch.manual_seed(0)
    kinds = [
        SamplingParams(seed=3), GREEDY, SamplingParams(temperature=0, min_tokens=4),
        SamplingParams(seed=5, repetition_penalty=1.4, frequency_penalty=0.5),
        SamplingParams(seed=6, presence_penalty=1.0, min_tokens=2),
    ]  # fmt: skip
    rows = [row(params, prompt=[1, 2, 2], output=[], eos=[7]) for params in kinds]
    kept = make_sampling_metadata(rows, 30)
    for _ in range(8):
        logits = torch.randn(len(rows), 30)
        logits[:, 7] += 3
        rebuilt = make_sampling_metadata(rows, 30)
        sampled = Sampler()(logits, kept).sampled_token_ids
        assert torch.equal(sampled, Sampler()(logits, rebuilt).sampled_token_ids)
        kept.advance(sampled)
        for request, token in zip(rows, sampled.tolist(), strict=True):
            request.output_token_ids.append(token)
    assert 7 not in rows[2].output_token_ids[:4]


def test_seeds_matter_and_unseeded_rows_differ():
    logits = torch.zeros(1, 1000).expand(64, -1)
    assert len(set(tokens(logits, [row(SamplingParams(seed=4))] * 64))) == 1
    assert len(set(tokens(logits, [row(SamplingParams(seed=s)) for s in range(64)]))) > 50
    assert len(set(tokens(logits, [row(SamplingParams())] * 64))) > 50
    extremes = [row(SamplingParams(seed=s)) for s in (0, 2**64 - 1, -(2**63), 2**63)]
    assert len(tokens(logits[:4], extremes)) == 4


# ---- greedy, masks, failed rows -------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 5), (3, 64), (64, 4096), (40, 4099)])
def test_greedy_is_argmax_and_the_first_of_a_tie(shape):
    torch.manual_seed(0)
    logits = torch.randn(shape).round()  # many ties
    first = [(r == r.max()).nonzero()[0].item() for r in logits]
    assert greedy_sample(logits).tolist() == first
    assert tokens(logits.bfloat16(), [row()] * shape[0]) == first


def test_top_k_1_is_greedy():
    torch.manual_seed(0)
    logits = torch.randn(8, 100)
    rows = [row(SamplingParams(seed=s, top_k=1, temperature=2.0)) for s in range(8)]
    assert tokens(logits, rows) == logits.argmax(-1).tolist()


def test_min_tokens_bans_eos_and_stop_tokens():
    logits = torch.tensor([[0.0, 5.0, 4.0, 3.0]])
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[2], ignore_eos=True)
    assert tokens(logits, [row(params, output=[0], eos=[1, 999])]) == [3]
    assert tokens(logits, [row(params, output=[0, 0], eos=[1])]) == [1]


def test_one_bad_row_does_not_take_the_others_down():
    logits = torch.randn(6, 128, generator=torch.Generator().manual_seed(0))
    good = tokens(logits, [row()] * 6)
    logits[1, 5] = math.nan
    logits[2, 5] = math.inf
    rows = [row() for _ in range(6)]
    rows[3] = row(SamplingParams(temperature=0, allowed_token_ids=[4], min_tokens=1), eos=[4])
    rows[4] = row(SamplingParams(seed=0, top_k=1))
    for params in (GREEDY, SamplingParams(seed=1, top_k=3, top_p=0.5, min_p=0.1, logprobs=2)):
        rows[1] = rows[2] = row(params)
        output = sample(logits, rows)
        assert set(output.invalid_rows) == {1, 2, 3}
        assert "NaN or infinite logits" in output.invalid_rows[1]
        assert "NaN or infinite logits" in output.invalid_rows[2]
        reason = "relax allowed_token_ids, logit_bias, min_tokens or structured_outputs"
        assert reason in output.invalid_rows[3]
        sampled = output.sampled_token_ids.tolist()
        assert [sampled[i] for i in (0, 4, 5)] == [good[i] for i in (0, 4, 5)]


def test_no_extreme_number_lets_a_forbidden_token_through():
    """Division by the temperature may overflow, and a row of NaN gives any token."""
    logits = torch.randn(2, 128, generator=torch.Generator().manual_seed(0))
    extremes = [
        {"temperature": MAX_FLOAT32},
        {"temperature": MIN_TEMPERATURE, "logit_bias": {7: MAX_FLOAT32}},
        {"temperature": MIN_TEMPERATURE, "logit_bias": {7: -MAX_FLOAT32, 8: -MAX_FLOAT32}},
        {"temperature": MIN_TEMPERATURE, "repetition_penalty": MIN_FLOAT32},
        {"temperature": MIN_TEMPERATURE, "repetition_penalty": MAX_FLOAT32},
    ]
    for values in extremes:
        for seed in range(5):
            params = SamplingParams(seed=seed, allowed_token_ids=[7, 8], **values)
            output = sample(logits, [row(params, prompt=[7, 8]), row()])
            assert output.invalid_rows.keys() == {0} or output.sampled_token_ids[0] in (7, 8)
            assert output.sampled_token_ids[1] == logits[1].argmax()


def test_logits_are_not_changed():
    logits = torch.randn(2, 50)
    before = logits.clone()
    params = SamplingParams(
        seed=0, temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, logit_bias={3: 1.0},
        repetition_penalty=1.2, allowed_token_ids=[1, 2, 3], min_tokens=3, logprobs=1,
    )  # fmt: skip
    sample(logits, [row(params, eos=[1]), row()])
    assert torch.equal(logits, before)


# ---- logprobs -------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(0, 5))
def test_logprobs_are_those_of_the_model(seed, count):
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(seed))
    params = SamplingParams(seed=seed, temperature=0.3, logit_bias={1: 50.0}, logprobs=count)
    output = sample(logits, [row(params)] * 3)
    expected = logits.double().log_softmax(-1)
    for index, token in enumerate(output.sampled_token_ids.tolist()):
        token_ids, logprobs, rank = output.logprobs.row(index, count)
        assert token == 1 == token_ids[0], "the bias decides"
        assert len(token_ids) == len(logprobs) == count + 1
        assert token_ids[1:] == expected[index].topk(count).indices.tolist()
        for token_id, logprob in zip(token_ids, logprobs, strict=True):
            assert logprob == pytest.approx(expected[index, token_id].item(), abs=1e-5)
        assert rank == (expected[index] >= expected[index, token]).sum()


def test_a_row_gets_only_the_logprobs_it_asked_for():
    logits = torch.randn(3, 40)
    rows = [row(SamplingParams(seed=1, logprobs=k)) for k in (0, 3, 1)]
    output = sample(logits, rows)
    assert output.logprobs.token_ids.shape == (3, 4)
    assert [len(output.logprobs.row(i, k)[0]) for i, k in enumerate((0, 3, 1))] == [1, 4, 2]
    assert sample(logits, [row()] * 3).logprobs is None


def test_ranks_of_ties_and_small_vocabularies():
    logprobs = compute_logprobs(torch.tensor([[2.0, 2.0, 1.0]]))
    assert gather_logprobs(logprobs, 2, torch.tensor([0])).ranks.tolist() == [2]
    assert gather_logprobs(logprobs, 2, torch.tensor([2])).ranks.tolist() == [3]
    assert gather_logprobs(logprobs, 20, torch.tensor([0])).token_ids.shape == (1, 4)


def test_prompt_logprobs():
    torch.manual_seed(0)
    logits = torch.randn(4, 30).bfloat16()
    prompt = [3, 8, 1, 29, 4]
    result = compute_prompt_logprobs(logits, torch.tensor(prompt[1:]), 2)
    expected = logits.float().log_softmax(-1)
    assert result.token_ids[:, 0].tolist() == prompt[1:]
    for position, token in enumerate(prompt[1:]):
        torch.testing.assert_close(result.logprobs[position, 0], expected[position, token])
