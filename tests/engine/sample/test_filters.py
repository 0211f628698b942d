"""Filters of one number a request, and the way from the declaration to the logits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.entrypoints.bench_requests import SAMPLING
from mini_vllm.entrypoints.openai.errors import as_api_error
from mini_vllm.entrypoints.openai.protocol import CompletionRequest
from mini_vllm.sample import make_sampling_metadata, sampler
from mini_vllm.sample.filters import FILTERS, apply_filters, top_n_sigma
from mini_vllm.sample.rejection_sampler import processed_probs
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import NUMBERS

INF = float("inf")


def kept_slowly(row: list[float], num_sigmas: float) -> list[bool]:
    """What llama.cpp keeps of one row: a token that is ruled out counts neither for the mean nor
    for the deviation."""
    if num_sigmas == 0:
        return [value > -INF for value in row]
    valid = [value for value in row if value > -INF]
    mean = sum(valid) / len(valid)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in valid) / len(valid))
    return [value >= max(valid) - num_sigmas * deviation for value in row]


def test_the_example_of_the_docstring() -> None:
    row = [10.0, 8.0, 7.0, 0.0, -INF]
    found = top_n_sigma(torch.tensor([row]), torch.tensor([1.0]))
    assert found.tolist() == [[10.0, 8.0, 7.0, -INF, -INF]]


@pytest.mark.parametrize("seed", range(8))
def test_top_n_sigma_keeps_what_a_slow_loop_keeps(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(6, 50, generator=random)
    logits[torch.rand(6, 50, generator=random) < 0.2] = -INF
    num_sigmas = torch.tensor([0.0, 0.3, 1.0, 2.5, 0.0, 1e30])
    found = top_n_sigma(logits, num_sigmas) > -INF
    pairs = zip(logits.tolist(), num_sigmas.tolist(), strict=True)
    assert found.tolist() == [kept_slowly(row, number) for row, number in pairs]


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_obeys_the_three_rules(name: str) -> None:
    """Off is off, the largest logit stays, and what is ruled out stays ruled out."""
    logits = torch.randn(4, 30)
    logits[:, 3:9] = -INF
    off = torch.full((4,), float(getattr(SamplingParams, name)))
    assert torch.equal(apply_filters(logits, {name: off}), logits)
    found = apply_filters(logits, {name: off + 0.4})
    assert torch.equal(found.argmax(1), logits.argmax(1))
    assert (found[:, 3:9] == -INF).all()
    assert NUMBERS[name].shapes


def metadata_of(*params: SamplingParams) -> Any:
    return make_sampling_metadata([(p, [1], [], ()) for p in params], 40)


def test_plain_sampling_and_drafts_see_one_distribution() -> None:
    logits = 4 * torch.randn(3, 40)
    metadata = metadata_of(
        SamplingParams(top_n_sigma=0.5, seed=1),
        SamplingParams(seed=2),
        SamplingParams(temperature=0, top_n_sigma=0.5),
    )
    assert list(metadata.filters) == ["top_n_sigma"]
    assert metadata.filters["top_n_sigma"].tolist() == [0.5, 0.0, 0.0]
    plain = Sampler.apply_processors(logits, metadata)
    drafts = processed_probs(logits, metadata)
    assert torch.equal(plain[0] > -INF, drafts[0] > 0) and (plain[0] == -INF).any()
    assert torch.equal(plain[1], logits[1])


def test_drafts_are_judged_by_what_a_plain_row_draws_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both write temperature, min-p, top-k and top-p down: the plain sampler's is a task of the
    course, which no shared function may take away. So this test holds the two together."""
    drawn_from: list[torch.Tensor] = []
    monkeypatch.setattr(sampler, "sample_from_logits", lambda x, uniform: drawn_from.append(x))
    settings = itertools.product((0.0, 0.5, 2.0), (0.0, 0.2), (0, 5), (1.0, 0.7), (0.0, 1.0))
    names = ("temperature", "min_p", "top_k", "top_p", "top_n_sigma")
    given: list[dict[str, Any]] = [dict(zip(names, one, strict=True)) for one in settings]
    params = [SamplingParams(**one, seed=1) for one in given]
    metadata = metadata_of(*params)
    logits = 4 * torch.randn(len(params), 40)
    judged_by = processed_probs(logits, metadata)
    Sampler().sample_randomly(Sampler.apply_processors(logits, metadata), metadata)
    is_random = metadata.temperature > 0
    assert torch.equal(judged_by[is_random], drawn_from[0].softmax(dim=-1)[is_random])
    chosen = judged_by[~is_random]
    assert torch.equal(chosen.argmax(dim=-1), logits[~is_random].argmax(dim=-1))
    assert (chosen.amax(dim=-1) == 1).all() and (chosen.sum(dim=-1) == 1).all()


def test_a_batch_that_does_not_use_it_does_no_work() -> None:
    assert metadata_of(SamplingParams(), SamplingParams(min_p=0.1)).filters == {}
    assert metadata_of(SamplingParams(temperature=0, top_n_sigma=1.0)).filters == {}


def test_check_protocol_and_command_line_follow_the_declaration() -> None:
    with pytest.raises(ValueError, match="top_n_sigma is -1; it must be finite and at least 0;"):
        SamplingParams(top_n_sigma=-1)
    request = CompletionRequest(prompt="Once", top_n_sigma=1.5)
    assert request.sampling_params({}, 4, None).top_n_sigma == 1.5
    with pytest.raises(ValueError) as error:
        CompletionRequest(prompt="Once", top_n_sigma=-2).sampling_params({}, 4, None)
    answer = as_api_error(error.value)
    assert (answer.status, answer.param) == (400, "top_n_sigma")
    assert SAMPLING["top_n_sigma"].plain is float


def test_a_narrow_filter_leaves_the_greedy_text() -> None:
    """Only the largest logit is within a thousandth of a deviation of itself."""
    llm = LLM(model="storyteller", dtype="float32", max_model_len=128, num_gpu_blocks=64)
    narrow = SamplingParams(top_n_sigma=1e-3, temperature=1.5, seed=3, max_tokens=12)
    greedy = SamplingParams(temperature=0, max_tokens=12)
    wide = SamplingParams(temperature=1.5, seed=3, max_tokens=12)
    texts = [o.outputs[0].text for o in llm.generate(["Once"] * 3, [narrow, greedy, wide])]
    assert texts[0] == texts[1] != texts[2]
