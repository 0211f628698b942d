"""The arithmetic of states, latents and sinks, computed again here, token by token in float64."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

few = settings(max_examples=6)
seeds = given(seed=st.integers(0, 2**31))
MIXERS = "mini_vllm.model.mixers."
STEPS, ELEMENTS = "labkit.inside.cost:steps", "labkit.inside.cost:elements"
BYTES = "labkit.inside.cost:peak_bytes"


def near(yours: Any, right: Any, what: str, atol: float = 1e-9) -> None:
    yours, right = np.asarray(yours, float), np.asarray(right, float)
    assert yours.shape == right.shape, f"{what}: shape {yours.shape}"
    worst = np.nan_to_num(np.abs(yours - right), nan=np.inf).max(initial=0.0)
    assert worst <= atol, f"{what}: off by {worst}"


def lengths(draw: Random, most: int) -> list[int]:
    return [draw.choice((1, 1, draw.randint(1, most))) for _ in range(draw.randint(1, 5))]


def parts(x: Any, lens: list[int]) -> list[Any]:
    return np.split(x, np.cumsum(lens)[:-1])


# ------------------------------------------------------------------ 18.9


@few
@seeds
def test_18_9_any_batch(subject: Any, hy: Any, seed: int) -> None:
    """Any lengths, widths and channels, with a bias or without; arguments stay."""
    draw, rng, p = Random(seed), np.random.default_rng(seed), Program()
    lens, width, channels = lengths(draw, 9), draw.randint(2, 5), draw.randint(1, 4)
    x, weight = rng.normal(size=(sum(lens), channels)), rng.normal(size=(channels, width))
    tails, bias = rng.normal(size=(len(lens), width - 1, channels)), rng.normal(size=channels)
    bias = bias if draw.random() < 0.5 else None
    sent = [hy.tensor(p, one) for one in (x, weight, tails)]
    shift = None if bias is None else hy.tensor(p, bias)
    rows = p.new(f"{MIXERS}causal_conv:ConvRows", lens, width)
    answer = p.call(f"{MIXERS}causal_conv:causal_conv", sent[0], sent[1], shift, sent[2], rows)
    p.see(answer[0])
    p.see(answer[1])
    for one in sent:
        p.see(one)
    y, new, *after = subject.run(p)
    outs, ends = [], []
    for own, tail in zip(parts(x, lens), tails, strict=True):
        every = np.concatenate((tail, own))
        outs += [(every[t : t + width] * weight.T).sum(0) for t in range(len(own))]
        ends.append(every[len(own) :])
    near(y, np.stack(outs) + (0 if bias is None else bias), f"outputs, lengths {lens}")
    near(new, np.stack(ends), f"new tails, lengths {lens}")
    for name, now, old in zip(("x", "weight", "tails"), after, (x, weight, tails), strict=True):
        near(now, old, f"{name} after the call", 0)


@pytest.mark.parametrize("foreign", [np.nan, np.inf])
def test_18_9_a_neighbours_nan_stays_there(subject: Any, hy: Any, foreign: float) -> None:
    """Six inputs an output; the requests before and behind hold what is no number, in tokens and
    tails: the one between them has numbers."""
    rng, lens, p = np.random.default_rng(5), [3, 8, 2], Program()
    x, weight, tails = rng.normal(size=(13, 2)), rng.normal(size=(2, 6)), rng.normal(size=(3, 5, 2))
    x[:3] = x[11:] = tails[0] = tails[2] = foreign
    rows = p.new(f"{MIXERS}causal_conv:ConvRows", lens, 6)
    sent = [hy.tensor(p, one) for one in (x, weight, tails)]
    answer = p.call(f"{MIXERS}causal_conv:causal_conv", sent[0], sent[1], None, sent[2], rows)
    p.see(answer[0])
    p.see(answer[1])
    y, new = (np.asarray(one, float) for one in subject.run(p))
    every = np.concatenate((tails[1], x[3:11]))
    near(y[3:11], [(every[t : t + 6] * weight.T).sum(0) for t in range(8)], "the one between them")
    near(new[1], every[8:], "its new tail")


def test_18_9_dtypes(subject: Any, hy: Any) -> None:
    """Tails of the cache may be narrow or wide; what comes out is as x is, and as exact."""
    p = Program()
    kinds = [("float32", "bfloat16"), ("float32", "float64"), ("bfloat16", "float32")]
    for kind, cached in kinds:
        x, weight = np.array([[1 + 2**-12], [2.0]]), np.ones((1, 3))
        rows = p.new(f"{MIXERS}causal_conv:ConvRows", [2], 3)
        sent = hy.tensor(p, x, kind), hy.tensor(p, weight, kind)
        tails = hy.tensor(p, np.ones((1, 2, 1)), cached)
        answer = p.call(f"{MIXERS}causal_conv:causal_conv", *sent, None, tails, rows)
        for index in (0, 1):
            p.see(p.call("builtins:str", answer[index].dtype))
            p.see(answer[index].double())
    seen = subject.run(p)
    assert seen[::2] == [f"torch.{kind}" for kind, _ in kinds for _ in range(2)]
    for outputs, new in zip(seen[1:8:4], seen[3:8:4], strict=True):
        near(outputs, [[3 + 2**-12], [4 + 2**-12]], "outputs", 1e-6)
        near(new, [[[1 + 2**-12], [2.0]]], "new tails", 0)


def test_18_9_an_output_of_one_input(subject: Any, hy: Any) -> None:
    """K is 1: nothing is remembered, and a tail has no row."""
    p = Program()
    x, weight, tails = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), [[2.0], [3.0]], (2, 0, 2)
    rows = p.new(f"{MIXERS}causal_conv:ConvRows", [2, 1], 1)
    sent = hy.tensor(p, x), hy.tensor(p, np.array(weight))
    none = p.call("torch:zeros", *tails, dtype=p.name("torch:float64"))
    answer = p.call(f"{MIXERS}causal_conv:causal_conv", *sent, None, none, rows)
    p.see(answer[0])
    p.see(p.call("builtins:list", answer[1].shape))
    y, shape = subject.run(p)
    near(y, x * [2.0, 3.0], "outputs")
    assert shape == [*tails]


def test_18_9_one_pass_for_all_requests(subject: Any, hy: Any) -> None:
    """512 requests of a token each cost as many steps of Python as 8, and 64 times the numbers."""
    p = Program()
    for requests in (8, 512):
        args = (
            p.call("torch:ones", requests, 4),
            p.call("torch:ones", 4, 4),
            None,
            p.call("torch:ones", requests, 3, 4),
            p.new(f"{MIXERS}causal_conv:ConvRows", [1] * requests, 4),
        )
        for cost in (STEPS, ELEMENTS):
            p.see(p.call(cost, p.name(f"{MIXERS}causal_conv:causal_conv"), *args))
    few_steps, few_numbers, many_steps, many_numbers = subject.run(p)
    assert many_steps < 1.5 * few_steps and many_numbers < 80 * few_numbers


# ------------------------------------------------------------------ 18.10


def delta_problem(draw: Random, rng: Any, lens: list[int], forget: float) -> list[Any]:
    tokens, heads = sum(lens), draw.randint(1, 3)
    dk, dv = draw.randint(1, 5), draw.randint(1, 5)
    q, k = rng.normal(size=(2, tokens, heads, dk))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v, beta = rng.normal(size=(tokens, heads, dv)), rng.uniform(0, 1, (tokens, heads))
    g = -forget * rng.exponential(size=(tokens, heads))
    return [q, k, v, g, beta, rng.normal(size=(len(lens), heads, dk, dv))]


def delta_loop(tensors: list[Any], lens: list[int]) -> tuple[Any, Any]:
    *tokens, states = tensors
    outs, ends = [], []
    for request, rows in enumerate(zip(*(parts(x, lens) for x in tokens), strict=True)):
        s = states[request]
        for q, k, v, g, beta in zip(*rows, strict=True):
            s = s * np.exp(g)[:, None, None]
            d = beta[:, None] * (v - np.einsum("hkv,hk->hv", s, k))
            s = s + np.einsum("hk,hv->hkv", k, d)
            outs.append(np.einsum("hkv,hk->hv", s, q))
        ends.append(s)
    return np.stack(outs), np.stack(ends)


def run_delta(subject: Any, hy: Any, tensors: list[Any], lens: list[int], size: int) -> list[Any]:
    """Outputs, states, and the arguments after the call."""
    p = Program()
    sent = [hy.tensor(p, x) for x in tensors]
    if size:
        chunks = p.new(f"{MIXERS}chunks:Chunks", lens, size)
        answer = p.call(f"{MIXERS}gated_delta:chunk_gated_delta_rule", *sent, chunks)
    else:
        answer = p.call(f"{MIXERS}gated_delta:recurrent_gated_delta_rule", *sent)
    for one in (answer[0], answer[1], *sent):
        p.see(one)
    seen: list[Any] = subject.run(p)
    return seen


@few
@seeds
def test_18_10_any_decodes(subject: Any, hy: Any, seed: int) -> None:
    """One token of several requests, slow and fast forgetting."""
    draw, rng = Random(seed), np.random.default_rng(seed)
    lens = [1] * draw.randint(1, 6)
    tensors = delta_problem(draw, rng, lens, draw.choice((0.05, 1.0, 30.0)))
    right = delta_loop(tensors, lens)
    out, ends, *after = run_delta(subject, hy, tensors, lens, 0)
    near(out, right[0], "outputs", 1e-10)
    near(ends, right[1], "new states", 1e-10)
    for number, (now, old) in enumerate(zip(after, tensors, strict=True)):
        near(now, old, f"argument {number} after the call", 0)


@few
@seeds
def test_18_10_any_chunks(subject: Any, hy: Any, seed: int) -> None:
    """Requests of any length in chunks of any size, the last of them padded."""
    draw, rng = Random(seed), np.random.default_rng(seed)
    lens = lengths(draw, 40)
    tensors = delta_problem(draw, rng, lens, draw.choice((0.05, 1.0, 30.0)))
    right = delta_loop(tensors, lens)
    out, ends, *after = run_delta(subject, hy, tensors, lens, draw.choice((1, 3, 8, 16, 64)))
    near(out, right[0], f"outputs, lengths {lens}", 1e-8)
    near(ends, right[1], f"new states, lengths {lens}", 1e-8)
    for number, (now, old) in enumerate(zip(after, tensors, strict=True)):
        near(now, old, f"argument {number} after the call", 0)


@pytest.mark.parametrize("size", [0, 4])
def test_18_10_a_neighbours_nan_stays_there(subject: Any, hy: Any, size: int) -> None:
    """Keys, values and a state that are no numbers: their request's outputs are none, and those of
    the others are what they are."""
    lens = [5, 9, 2] if size else [1, 1, 1]
    tensors = delta_problem(Random(3), np.random.default_rng(3), lens, 0.5)
    right = delta_loop(tensors, lens)
    for tensor in tensors[:3]:
        tensor[: lens[0]] = np.nan
    tensors[5][0] = np.nan
    out, ends, *_ = run_delta(subject, hy, tensors, lens, size)
    near(out[lens[0] :], right[0][lens[0] :], "outputs of the others", 1e-8)
    near(ends[1:], right[1][1:], "their states", 1e-8)


@pytest.mark.parametrize("forget", [50.0, 1000.0])
def test_18_10_a_head_that_forgets_at_once(subject: Any, hy: Any, forget: float) -> None:
    """Decays that add up to -3,000 and to -60,000 in a chunk, where no exponential is left."""
    draw, rng = Random(1), np.random.default_rng(1)
    tensors = delta_problem(draw, rng, [64, 3], forget)
    right = delta_loop(tensors, [64, 3])
    out, ends, *_ = run_delta(subject, hy, tensors, [64, 3], 64)
    near(out, right[0], "outputs", 1e-8)
    near(ends, right[1], "new states", 1e-8)


def test_18_10_in_the_dtype_of_states(subject: Any, hy: Any) -> None:
    """Tokens in bfloat16, states in float32: computed and returned in float32."""
    rng, lens = np.random.default_rng(7), [20]
    tensors = delta_problem(Random(7), rng, lens, 0.2)
    p = Program()
    sent = [hy.tensor(p, x, "bfloat16") for x in tensors[:5]]
    states = hy.tensor(p, tensors[5], "float32")
    answer = p.call(
        f"{MIXERS}gated_delta:chunk_gated_delta_rule",
        *sent, states, p.new(f"{MIXERS}chunks:Chunks", lens),
    )  # fmt: skip
    firsts = [x.narrow(0, 0, 1) for x in sent]
    one = p.call(f"{MIXERS}gated_delta:recurrent_gated_delta_rule", *firsts, states)
    for x in (answer[0], answer[1], one[0], one[1]):
        p.see(p.call("builtins:str", x.dtype))
    for x in (answer[0], one[0], *(x.double() for x in sent)):
        p.see(x)
    *dtypes, out, first, q, k, v, g, beta = subject.run(p)
    assert dtypes == ["torch.float32"] * 4
    rounded = [np.asarray(x, float) for x in (q, k, v, g, beta)]
    right, _ = delta_loop([*rounded, tensors[5]], lens)
    near(out, right, "outputs of a chunk", 1e-4)
    near(first, right[:1], "outputs of one token", 1e-4)


def test_18_10_rounds_and_not_tokens(subject: Any, hy: Any) -> None:
    """16 requests of 512 tokens: steps of Python are those of 8 chunks, and far fewer than 512
    times those of a token; numbers grow with chunks times their size, not with the square of a
    prompt."""
    p = Program()
    for requests, tokens in ((1, 64), (1, 512), (16, 64)):
        total = requests * tokens
        args = [p.call("torch:full", [total, 1, 8], 8**-0.5) for _ in range(3)]
        args += [p.call("torch:full", [total, 1], -0.1), p.call("torch:ones", total, 1)]
        args += [p.call("torch:zeros", requests, 1, 8, 8)]
        chunks = p.new(f"{MIXERS}chunks:Chunks", [tokens] * requests)
        rule = p.name(f"{MIXERS}gated_delta:chunk_gated_delta_rule")
        for cost in (STEPS, ELEMENTS):
            p.see(p.call(cost, rule, *args, chunks))
    alone = [p.call("torch:ones", 1, 1, 8) for _ in range(3)]
    alone += [p.call("torch:zeros", 1, 1), p.call("torch:ones", 1, 1)]
    alone += [p.call("torch:zeros", 1, 1, 8, 8)]
    p.see(p.call(STEPS, p.name(f"{MIXERS}gated_delta:recurrent_gated_delta_rule"), *alone))
    one, numbers, long, long_numbers, broad, broad_numbers, token = subject.run(p)
    assert long < 8 * one and broad < 4 * one
    assert long < 512 * min(token, 400) / 3, f"{long:,} steps for 512 tokens, {token:,} for one"
    assert long_numbers < 12 * numbers and broad_numbers < 24 * numbers


# ------------------------------------------------------------------ 18.11


@few
@seeds
def test_18_11_any_heads(subject: Any, hy: Any, seed: int) -> None:
    """Against attention that makes keys and values; what lies behind is NaN."""
    draw, rng, p = Random(seed), np.random.default_rng(seed), Program()
    heads, size, rank = draw.randint(1, 4), draw.randint(1, 8), draw.randint(1, 4)
    plain, value = draw.randint(1, 6), draw.randint(1, 6)
    lens = [draw.randint(1, 12) for _ in range(draw.randint(1, 4))]
    query = rng.normal(size=(len(lens), heads, plain + rank))
    latents = rng.normal(size=(len(lens), 12, size + rank))
    weight, scale = rng.normal(size=(heads, plain + value, size)), draw.uniform(0.05, 2)
    for own, length in zip(latents, lens, strict=True):
        own[length:] = np.nan
    sent = [hy.tensor(p, one) for one in (query, latents, weight)]
    counts = p.call("torch:tensor", lens)
    p.see(p.call(f"{MIXERS}mla:attend_latent", sent[0], sent[1], counts, sent[2], scale))
    for one in sent:
        p.see(one)
    out, *after = subject.run(p)
    right = np.zeros((len(lens), heads, value))
    for row, length in enumerate(lens):
        c, k_r = np.split(latents[row, :length], [size], axis=1)
        for head in range(heads):
            keys = np.concatenate((c @ weight[head, :plain].T, k_r), axis=1)
            scores = keys @ query[row, head] * scale
            shares = np.exp(scores - scores.max())
            right[row, head] = shares / shares.sum() @ (c @ weight[head, plain:].T)
    near(out, right, f"lengths {lens}", 1e-9)
    for now, old in zip(after, (query, latents, weight), strict=True):
        near(np.nan_to_num(now, nan=7), np.nan_to_num(old, nan=7), "an argument after the call", 0)


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_18_11_in_the_dtype_of_the_arguments(subject: Any, hy: Any, kind: str) -> None:
    """Latents of a narrow cache give a narrow result."""
    p = Program()
    shapes = (2, 3, 6), (2, 5, 6), (3, 7, 4)
    query, latents, weight = (hy.tensor(p, np.ones(shape), kind) for shape in shapes)
    counts = p.call("torch:tensor", [5, 1])
    out = p.call(f"{MIXERS}mla:attend_latent", query, latents, counts, weight, 0.5)
    p.see(p.call("builtins:str", out.dtype))
    p.see(out.double())
    dtype, values = subject.run(p)
    assert dtype == f"torch.{kind}"
    near(values, np.full((2, 3, 3), 4.0), "values of ones")


def test_18_11_scores_of_any_size(subject: Any, hy: Any) -> None:
    """All visible scores are far below -10,000: what lies behind still counts for nothing."""
    p = Program()
    latents = np.array([[[1.0, 0.0], [1.0, 0.25], [0.0, 0.0], [0.0, 0.0]]])
    args = [np.array([[[-1e6, -4.0]]]), latents, np.array([[[1.0], [1.0]]])]
    sent = [hy.tensor(p, one) for one in args]
    counts = p.call("torch:tensor", [2])
    p.see(p.call(f"{MIXERS}mla:attend_latent", sent[0], sent[1], counts, sent[2], 1.0))
    near(subject.run(p)[0], [[[1.0]]], "two latents of 1 behind scores of -1,000,000")


def test_18_11_latents_are_read_as_they_are(subject: Any, hy: Any) -> None:
    """DeepSeek's proportions: 16 heads over 1,024 latents of 128 + 16 numbers. To make keys and
    values would touch 16 x 1,024 x 128 numbers, more than all that is read."""
    p = Program()
    heads, length, size, rank, plain = 16, 1024, 128, 16, 64
    args = (
        p.call("torch:ones", 1, heads, plain + rank),
        p.call("torch:ones", 1, length, size + rank),
        p.call("torch:tensor", [length]),
        p.call("torch:ones", heads, 2 * plain, size),
        0.1,
    )
    for cost in (ELEMENTS, BYTES):  # of tensors; and of NumPy and lists, which hold nothing here
        p.see(p.call(cost, p.name(f"{MIXERS}mla:attend_latent"), *args))
    cost, memory = subject.run(p)
    assert memory < 4 * 4 * length * (size + rank), f"{memory:,} bytes beside the tensors"
    assert cost < 4 * length * (size + rank) + 10 * heads * length + 4 * heads * 2 * plain * size


# ------------------------------------------------------------------ 18.12


def softmax(scores: Any) -> Any:
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@few
@seeds
def test_18_12_any_splits_and_sinks(subject: Any, hy: Any, seed: int) -> None:
    """Keys in parts of any size, some of them empty; then a sink a head."""
    draw, rng, p = Random(seed), np.random.default_rng(seed), Program()
    tokens, heads, sizes = 3, draw.randint(1, 4), [draw.randint(0, 4) for _ in range(4)] + [1]
    scale = draw.choice((1.0, 5.0))
    scores = scale * rng.normal(size=(tokens, heads, sum(sizes)))
    values = rng.normal(size=(tokens, heads, sum(sizes), 3))
    sink = rng.normal(size=heads) * 3
    partial = np.zeros((tokens, heads, len(sizes), 3))
    lse = np.full((tokens, heads, len(sizes)), -np.inf)
    start = 0
    for index, size in enumerate(sizes):
        own = slice(start, start + size)
        if size:
            partial[:, :, index] = np.einsum(
                "thl,thld->thd", softmax(scores[..., own]), values[:, :, own]
            )
            lse[:, :, index] = np.log(np.exp(scores[..., own]).sum(-1))
        start += size
    merged = p.call(f"{MIXERS}sinks:merge_splits", hy.tensor(p, partial), hy.tensor(p, lse))
    p.see(merged[0])
    p.see(merged[1])
    p.see(p.call(f"{MIXERS}sinks:add_sink", merged[0], merged[1], hy.tensor(p, sink)))
    out, whole, final = subject.run(p)
    near(out, np.einsum("thl,thld->thd", softmax(scores), values), f"parts {sizes}: out", 1e-10)
    near(whole, np.log(np.exp(scores).sum(-1)), f"parts {sizes}: lse", 1e-10)
    column = np.broadcast_to(sink[None, :, None], (tokens, heads, 1))
    shares = softmax(np.concatenate((scores, column), axis=-1))[..., :-1]
    near(final, np.einsum("thl,thld->thd", shares, values), "with a sink", 1e-6)


def test_18_12_scores_of_any_size(subject: Any, hy: Any) -> None:
    """lse of +-10,000, sinks of the same size, and one of -inf."""
    p = Program()
    out, lse = np.ones((4, 1, 2)), np.array([[1e4], [-1e4], [0.0], [1e4]])
    for sink in (1e4, -1e4, -np.inf):
        args = hy.tensor(p, out, "float32"), hy.tensor(p, lse, "float32")
        p.see(p.call(f"{MIXERS}sinks:add_sink", *args, hy.tensor(p, np.array([sink]), "float32")))
    partial = hy.tensor(p, np.array([[[[1.0], [0.0]]]] * 2), "float32")
    merged = p.call(
        f"{MIXERS}sinks:merge_splits",
        partial,
        hy.tensor(p, np.array([[[1e4, 1e4 - 1]], [[-1e4, -1e4 - 1]]]), "float32"),
    )
    p.see(merged[0])
    p.see(merged[1])
    high, low, none, whole, lses = (np.asarray(x, float) for x in subject.run(p))
    near(high[:, 0, 0], [0.5, 0, 0, 0.5], "sink 10,000", 1e-6)
    near(low[:, 0, 0], [1, 0.5, 1, 1], "sink -10,000", 1e-6)
    near(none, out, "sink -inf", 0)
    near(whole.flatten(), [0.73106, 0.73106], "parts of 10,000 and 9,999", 1e-3)
    near(lses.flatten(), [10000.3133, -9999.6867], "lse of both parts", 1e-2)


def test_18_12_lse_is_not_rounded(subject: Any, hy: Any) -> None:
    """lse and sinks are float32 beside an output in bfloat16, in which 100.125 would be 100. And
    the output that was given stays."""
    p = Program()
    out = hy.tensor(p, np.ones((1, 1, 1)), "bfloat16")
    lse, sink = (hy.tensor(p, np.array(x), "float32") for x in ([[100.125]], [103.375]))
    p.see(p.call(f"{MIXERS}sinks:add_sink", out, lse, sink).double())
    for argument in (out, lse, sink):
        p.see(argument.double())
    sunk, *after = subject.run(p)
    near(sunk, [[[1 / (1 + np.exp(3.25))]]], "a sink 3.25 above lse", 2e-4)
    for now, before in zip(after, ([[[1.0]]], [[100.125]], [103.375]), strict=True):
        near(now, before, "an argument after the call", 0)


def test_18_12_the_factor_of_a_sink_is_rounded_once(subject: Any, hy: Any) -> None:
    """A sink 9.8867 above lse, in bfloat16 9.875: from that the factor would be off by a
    hundredth of itself."""
    p = Program()
    out = hy.tensor(p, np.ones((1, 1, 1)), "bfloat16")
    lse, sink = (hy.tensor(p, np.array(x), "float32") for x in ([[100.125]], [110.0117]))
    p.see(p.call(f"{MIXERS}sinks:add_sink", out, lse, sink).double())
    near(subject.run(p)[0], [[[1 / (1 + np.exp(9.8867))]]], "a sink 9.8867 above lse", 2e-7)


def test_18_12_lse_stays(subject: Any, hy: Any) -> None:
    """Parts and their lse are only read: attention may need them again."""
    p = Program()
    given = np.array([[[[1.0], [3.0]]]]), np.array([[[0.5, 1.5]]])
    sent = [hy.tensor(p, one, "float32") for one in given]
    p.call(f"{MIXERS}sinks:merge_splits", *sent)
    for one in sent:
        p.see(one)
    for name, now, before in zip(("partial", "lse"), subject.run(p), given, strict=True):
        near(now, before, f"{name} after the call", 0)


def test_18_12_shares_of_narrow_parts_are_not_rounded_first(subject: Any, hy: Any) -> None:
    """Parts in bfloat16, in which lse of 100.125 and 103.375 would be 100 and 103.5."""
    p = Program()
    partial = hy.tensor(p, np.array([[[[0.0], [1.0]]]]), "bfloat16")
    lse = hy.tensor(p, np.array([[[100.125, 103.375]]]), "float32")
    merged = p.call(f"{MIXERS}sinks:merge_splits", partial, lse)
    p.see(merged[0].double())
    p.see(merged[1].double())
    out, whole = subject.run(p)
    near(out, [[[1 / (1 + np.exp(-3.25))]]], "the second part's share", 3e-3)
    near(whole, [[103.375 + np.log1p(np.exp(-3.25))]], "lse of both parts", 1e-4)


def test_18_12_the_dtype_of_out(subject: Any, hy: Any) -> None:
    """bfloat16 stays bfloat16, whatever lse and sinks are in."""
    p = Program()
    out = hy.tensor(p, np.ones((1, 2, 3, 4)), "bfloat16")
    for kind in ("float32", "bfloat16"):
        sink, lse = hy.tensor(p, np.zeros(2), kind), hy.tensor(p, np.zeros((1, 2, 3)), "float32")
        merged = p.call(f"{MIXERS}sinks:merge_splits", out, lse)
        p.see(p.call("builtins:str", merged[0].dtype))
        sunk = p.call(f"{MIXERS}sinks:add_sink", merged[0], merged[1], sink)
        p.see(p.call("builtins:str", sunk.dtype))
    assert subject.run(p) == ["torch.bfloat16"] * 4
