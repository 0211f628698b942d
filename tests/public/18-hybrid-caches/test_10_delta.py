"""Task 18.10: a memory that is corrected by each token, token by token and in chunks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.testing import expect
from mini_vllm.model.mixers.chunks import Chunks
from mini_vllm.model.mixers.gated_delta import chunk_gated_delta_rule, recurrent_gated_delta_rule

NAMES = ("q", "k", "v", "g", "beta", "states")


def problem(hy: Any, tokens: int, requests: int, heads: int = 2, forget: float = 1.0) -> Any:
    """q, k, v, g, beta of some tokens, and states; keys have length 1, g is at most 0."""
    q, k, v = (hy.random(tokens, heads, d, seed=s) for s, d in enumerate((3, 3, 4)))
    g = -forget * hy.random(tokens, heads, seed=3).abs()
    beta = hy.random(tokens, heads, seed=4).sigmoid()
    states = hy.random(requests, heads, 3, 4, seed=5)
    return q, torch.nn.functional.normalize(k, dim=-1), v, g, beta, states


def plainly(tensors: Any, lens: list[int]) -> tuple[Tensor, Tensor]:
    """Request by request, token by token, head by head."""
    *tokens, states = tensors
    outs, ends = [], states.clone()
    for request, parts in enumerate(zip(*(x.split(lens) for x in tokens), strict=True)):
        for q, k, v, g, beta in zip(*parts, strict=True):
            out = []
            for head in range(len(g)):
                state = ends[request, head] * g[head].exp()
                short = beta[head] * (v[head] - k[head] @ state)
                ends[request, head] = state = state + torch.outer(k[head], short)
                out.append(q[head] @ state)
            outs.append(torch.stack(out))
    return torch.stack(outs), ends


def one_head(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(1, 1, -1)


def test_18_10_a_memory_answers_with_what_was_written(hy: Any) -> None:
    """Key (1, 0) has value 5, half of which is forgotten; half of what is short is written."""
    state = torch.tensor([[5.0], [0.0]], dtype=torch.float64).view(1, 1, 2, 1)
    half = torch.tensor([[0.5]], dtype=torch.float64)
    key = one_head(1, 0)
    out, new = recurrent_gated_delta_rule(key, key, one_head(9), half.log(), half, state)
    at = "the memory says 2.5 for this key, 9 is wanted, half of the 6.5 between is written"
    expect(round(float(out), 6), 5.75, at=at)
    expect([round(x, 6) for x in new.flatten().tolist()], [5.75, 0.0], at="the new memory")


def test_18_10_a_token_at_a_time_for_several_requests(hy: Any) -> None:
    """Four requests, each with a state of its own; numbers to the last digits of float64."""
    tensors = problem(hy, 4, 4)
    out, ends = recurrent_gated_delta_rule(*tensors)
    right, right_ends = plainly(tensors, [1] * 4)
    hy.near(out, right, "outputs of 4 requests, one token each", 1e-12)
    hy.near(ends, right_ends, "new states of 4 requests", 1e-12)


def test_18_10_chunks_give_the_same_numbers(hy: Any) -> None:
    """Chunks of 1, 4 and 64 tokens: a request of 11 tokens against its 11 steps."""
    tensors = problem(hy, 11, 1)
    right, right_ends = plainly(tensors, [11])
    for size in (1, 4, 64):
        out, ends = chunk_gated_delta_rule(*tensors, Chunks([11], size))
        hy.near(out, right, f"outputs in chunks of {size}", 1e-11)
        hy.near(ends, right_ends, f"the new state, in chunks of {size}", 1e-11)


def test_18_10_requests_in_one_batch_know_nothing_of_each_other(hy: Any) -> None:
    """Requests of 5, 1 and 9 tokens, in chunks of 4, the last of them padded."""
    tensors, lens = problem(hy, 15, 3), [5, 1, 9]
    right, right_ends = plainly(tensors, lens)
    out, ends = chunk_gated_delta_rule(*tensors, Chunks(lens, 4))
    hy.near(out, right, "outputs of three requests", 1e-11)
    hy.near(ends, right_ends, "new states of three requests", 1e-11)


def test_18_10_a_head_that_forgets_at_once_gives_numbers(hy: Any) -> None:
    """64 tokens whose decays add up to -1000: e^1000 overflows, and must never be computed."""
    tensors = [x.float() for x in problem(hy, 64, 1, forget=20.0)]
    right, right_ends = plainly([x.double() for x in tensors], [64])
    out, ends = chunk_gated_delta_rule(*tensors, Chunks([64], 64))
    hy.near(out, right, "outputs of a head that forgets at once", 1e-4)
    hy.near(ends, right_ends, "its new state", 1e-4)


def test_18_10_results_have_the_dtype_of_states(hy: Any) -> None:
    """The model may be in bfloat16; small corrections would be lost in it."""
    *tokens, states = problem(hy, 6, 1)
    narrow = [x.bfloat16() for x in tokens]
    wide = [x.double() for x in narrow]
    for name, got in (
        ("chunks", chunk_gated_delta_rule(*narrow, states.float(), Chunks([6]))),
        ("one token", recurrent_gated_delta_rule(*(x[:1] for x in narrow), states.float())),
    ):
        expect([str(x.dtype) for x in got], ["torch.float32"] * 2, at=f"{name}: outputs, states")
    out, _ = chunk_gated_delta_rule(*narrow, states.float(), Chunks([6]))
    right, _ = plainly([*wide, states], [6])
    hy.near(out, right, "computed in float32, not in bfloat16", 1e-4)


def test_18_10_arguments_stay_as_they_are(hy: Any) -> None:
    """States lie in the cache; a step that fails must not have moved them."""
    for name, call in (
        ("one token", lambda t: recurrent_gated_delta_rule(*t)),
        ("chunks", lambda t: chunk_gated_delta_rule(*t, Chunks([1, 1, 1], 1))),
    ):
        tensors = problem(hy, 3, 3)
        before = [x.clone() for x in tensors]
        call(tensors)
        for which, now, old in zip(NAMES, tensors, before, strict=True):
            hy.near(now, old, f"{name}: {which} after the call")


def test_18_10_a_prompt_costs_rounds_not_tokens(hy: Any) -> None:
    """256 tokens in 4 chunks: far fewer steps of Python than 256 turns of a loop."""
    from labkit.inside.cost import steps

    tensors = problem(hy, 256, 1)
    costs = [
        steps(chunk_gated_delta_rule, *(x[:n] for x in tensors[:5]), tensors[5], Chunks([n], 64))
        for n in (64, 256)
    ]
    assert costs[1] < 3 * costs[0], (
        f"64 tokens cost {costs[0]} steps of Python, 256 cost {costs[1]}; a state moves on once a "
        "chunk of 64"
    )
