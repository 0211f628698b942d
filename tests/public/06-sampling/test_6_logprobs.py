"""Task 06.6: logprobs, and the sampler as a whole."""

from __future__ import annotations

import math
from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.sample.sampler import Sampler, compute_prompt_logprobs, gather_logprobs

FOUR = [0.2, 0.5, 0.1, 0.2]


def logs(*probabilities: float) -> list[float]:
    return [round(math.log(p), 4) for p in probabilities]


def test_06_6_the_sampled_token_first_then_the_most_likely(lab: Any) -> None:
    """Gather: the token of the row, then the k most likely ones; it may come twice."""
    logprobs = torch.tensor([[0.25, 0.5, 0.05, 0.2]] * 2).log()
    result = gather_logprobs(logprobs, 2, torch.tensor([2, 1]))
    at = "k = 2; the tokens are 2, the least likely, and 1, the most likely"
    expect(lab.listed(result.token_ids), [[2, 1, 0], [1, 1, 0]], at=at)
    expected = [logs(0.05, 0.5, 0.25), logs(0.5, 0.5, 0.25)]
    expect(lab.listed(result.logprobs), expected, at=at)


def test_06_6_the_rank_counts_from_1(lab: Any) -> None:
    """Rank: how many tokens are at least as likely, itself included; a tie counts for both."""
    logprobs = torch.tensor([FOUR] * 4).log()
    result = gather_logprobs(logprobs, 1, torch.tensor([0, 1, 2, 3]))
    at = "tokens 0 to 3; 0 and 3 tie for the second place"
    expect(lab.listed(result.ranks), [3, 1, 4, 3], at=at, probabilities=FOUR)


def test_06_6_none_and_more_than_all(lab: Any) -> None:
    """Gather: k = 0 gives the token alone; k above the vocabulary gives all of it."""
    logprobs, token = torch.tensor([FOUR]).log(), torch.tensor([2])
    alone = gather_logprobs(logprobs, 0, token)
    expect(lab.listed(alone.token_ids), [[2]], at="k = 0")
    expect(tuple(gather_logprobs(logprobs, 20, token).logprobs.shape), (1, 5), at="k = 20, V = 4")


def test_06_6_prompt_logprobs_are_normalised_in_float32(lab: Any) -> None:
    """Prompt: row t of the logits judges prompt token t + 1; bfloat16 logits become float32."""
    logits = torch.tensor([[1.0, 3.0, 0.0], [2.0, 2.0, 5.0]], dtype=torch.bfloat16)
    result = compute_prompt_logprobs(logits, torch.tensor([0, 2]), 1)
    expected = logits.float().log_softmax(-1)
    at = "a prompt of three tokens, the last two of which are 0 and 2"
    expect(lab.listed(result.token_ids), [[0, 1], [2, 2]], at=at)
    picked = [[expected[0, 0], expected[0, 1]], [expected[1, 2], expected[1, 2]]]
    expect(lab.listed(result.logprobs), [[round(x.item(), 4) for x in r] for r in picked], at=at)
    expect(str(result.logprobs.dtype), "torch.float32", at=at)


def test_06_6_logprobs_are_those_of_the_model(lab: Any) -> None:
    """Sampler: logprobs come from the raw logits, whatever temperature, bias and filters do."""
    row = lab.row(temperature=0.5, top_k=1, logit_bias={2: 50.0}, logprobs=2, seed=0)
    output = Sampler()(lab.logits_of(FOUR), lab.metadata_of(4, row))
    at = "a bias of 50 forces token 2, which the model gives 0.1"
    expect(lab.listed(output.sampled_token_ids), [2], at=at, probabilities=FOUR)
    token_ids, logprobs, rank = output.logprobs.row(0, 1)
    expect((token_ids, rank), ([2, 1], 4), at=at, probabilities=FOUR)
    expect([round(x, 4) for x in logprobs], logs(0.1, 0.5), at=at, probabilities=FOUR)


def test_06_6_logprobs_are_computed_only_on_request(lab: Any) -> None:
    """Sampler: logprobs are None unless a row wants them; 0 means the sampled token alone."""
    logits = lab.logits_of(FOUR, FOUR)
    output = Sampler()(logits, lab.metadata_of(4, lab.row(), lab.row()))
    expect(output.logprobs, None, at="no row wants logprobs")
    output = Sampler()(logits, lab.metadata_of(4, lab.row(), lab.row(logprobs=0)))
    expect(lab.listed(output.logprobs.token_ids), [[1], [1]], at="one row wants logprobs=0")


def test_06_6_processors_come_before_the_choice(lab: Any) -> None:
    """Sampler: a ban, a bias and a penalty change what a greedy row says."""
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]] * 4)
    rows = [
        lab.row(), lab.row(allowed_token_ids=[0, 1]), lab.row(logit_bias={0: 9.0}),
        lab.row(output=[3], repetition_penalty=2.0),
    ]  # fmt: skip
    output = Sampler()(logits, lab.metadata_of(4, *rows))
    at = "plain; tokens 0 and 1 allowed; bias 9 on token 0; repetition 2 on token 3"
    expect(lab.listed(output.sampled_token_ids), [3, 1, 0, 2], at=at)


def test_06_6_one_bad_row_does_not_take_the_others_down(lab: Any) -> None:
    """Sampler: rows with NaN, or with no token left, are marked; the others get their tokens."""
    logits = torch.tensor([[1.0, 2.0], [math.nan, 2.0], [-math.inf, -math.inf], [2.0, 1.0]])
    output = Sampler()(logits, lab.metadata_of(2, *[lab.row()] * 4))
    at = "row 1 has a NaN, row 2 has nothing left"
    expect(sorted(output.invalid_rows), [1, 2], at=at)
    tokens = lab.listed(output.sampled_token_ids)
    expect([tokens[0], tokens[3]], [1, 0], at=f"{at}; rows 0 and 3 are sound")


def test_06_6_the_models_logits_are_not_changed(lab: Any) -> None:
    """Sampler: any float dtype comes in, and stays as it was."""
    row = lab.row(temperature=0.7, seed=1, min_p=0.1, top_k=2, top_p=0.9, logprobs=1,
                  logit_bias={0: 1.0}, repetition_penalty=1.5)  # fmt: skip
    for dtype in (torch.float32, torch.bfloat16):
        lab.expect_untouched(Sampler(), lab.logits_of(FOUR).to(dtype), lab.metadata_of(4, row))
