"""The arithmetic of the mixers: against plain loops in float64, and numbers of transformers."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mini_vllm.model.mixers.causal_conv import ConvRows, causal_conv
from mini_vllm.model.mixers.chunks import Chunks
from mini_vllm.model.mixers.gated_delta import chunk_gated_delta_rule, recurrent_gated_delta_rule
from mini_vllm.model.mixers.mamba2 import chunk_scan, selective_state_update
from mini_vllm.model.mixers.mla import attend_expanded, attend_latent
from mini_vllm.model.mixers.sinks import add_sink, merge_splits
from tests.engine.model.mixers import problems
from tests.engine.model.mixers.problems import LENS

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("recorded.json").read_text())


def recorded(name: str) -> list[Tensor]:
    return [torch.tensor(x["data"]).reshape(x["shape"]).double() for x in RECORDED[name]]


def parts(x: Tensor, lens: tuple[int, ...] = LENS) -> list[Tensor]:
    return list(x.split(list(lens)))


def error(ours: Tensor, right: Tensor) -> float:
    return float((ours - right).abs().max())


def delta_loop(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    """One request, token by token, as the module's head writes it."""
    *tokens, s = tensors
    outs = []
    for q, k, v, g, beta in zip(*tokens, strict=True):
        s = s * g.exp()[:, None, None]
        d = beta[:, None] * (v - torch.einsum("hkv,hk->hv", s, k))
        s = s + torch.einsum("hk,hv->hkv", k, d)
        outs.append(torch.einsum("hkv,hk->hv", s, q))
    return torch.stack(outs), s


def space_loop(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, s: Tensor) -> Any:
    """One request, token by token; a group of heads shares b and c."""
    outs, share = [], x.shape[1] // b.shape[1]
    for x1, dt1, b1, c1 in zip(x, dt, b, c, strict=True):
        b1, c1 = (one.repeat_interleave(share, dim=0) for one in (b1, c1))
        s = s * (dt1 * a).exp()[:, None, None] + torch.einsum("hp,hn->hpn", dt1[:, None] * x1, b1)
        outs.append(torch.einsum("hpn,hn->hp", s, c1) + d[:, None] * x1)
    return torch.stack(outs), s


# ---------------------------------------------------------------- gated delta rule
@pytest.mark.parametrize("size", [1, 4, 16, 64])
def test_chunks_of_several_requests_equal_the_loop(size: int) -> None:
    q, k, v, g, beta, states = problems.gated_delta()
    out, ends = chunk_gated_delta_rule(q, k, v, g, beta, states, Chunks(LENS, size))
    each = zip(*map(parts, (q, k, v, g, beta)), states, strict=True)
    right = [delta_loop(*one) for one in each]
    assert error(out, torch.cat([each[0] for each in right])) < 1e-12
    assert error(ends, torch.stack([each[1] for each in right])) < 1e-12


def test_a_decode_of_several_requests_equals_the_loop() -> None:
    q, k, v, g, beta, states = problems.gated_delta(num=4)
    out, ends = recurrent_gated_delta_rule(q, k, v, g, beta, states)
    for row in range(4):
        one = [x[row : row + 1] for x in (q, k, v, g, beta)]
        right_out, right_end = delta_loop(*one, states[row])
        assert error(out[row], right_out[0]) < 1e-13
        assert error(ends[row], right_end) < 1e-13


def test_gated_delta_equals_transformers() -> None:
    q, k, v, g, beta, states = (x.float() for x in problems.gated_delta())
    right_out, right_ends = recorded("gated_delta")
    out, ends = chunk_gated_delta_rule(q, k, v, g, beta, states, Chunks(LENS))
    assert error(out, right_out) < 2e-5  # five digits are recorded
    assert error(ends, right_ends) < 2e-5


def test_a_head_that_forgets_at_once_stays_finite() -> None:
    """Over 64 tokens its decays add up to far below what float32 can be an exponential of."""
    problem = problems.gated_delta(num=64, states=1, strength=20.0)
    q, k, v, g, beta, states = (x.float() for x in problem)
    assert float(g.sum(0).min()) < -800
    out, ends = chunk_gated_delta_rule(q, k, v, g, beta, states, Chunks([64], 64))
    exact = (x.double() for x in (q, k, v, g, beta, states[0]))
    right, right_end = delta_loop(*exact)
    assert error(out, right) < 2e-6
    assert error(ends[0], right_end) < 2e-6


# ---------------------------------------------------------------- state space
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("size", [1, 16, 64])
def test_the_scan_of_several_requests_equals_the_loop(groups: int, size: int) -> None:
    x, dt, a, b, c, d, states = problems.state_space(groups=groups)
    out, ends = chunk_scan(x, dt, b, c, states, Chunks(LENS, size), a=a, d=d)
    each = zip(parts(x), parts(dt), parts(b), parts(c), states, strict=True)
    right = [space_loop(x1, dt1, a, b1, c1, d, s) for x1, dt1, b1, c1, s in each]
    assert error(out, torch.cat([one[0] for one in right])) < 1e-12
    assert error(ends, torch.stack([one[1] for one in right])) < 1e-12


def test_an_update_of_several_requests_equals_the_loop() -> None:
    x, dt, a, b, c, d, states = problems.state_space(num=4, groups=2)
    out, ends = selective_state_update(x, dt, b, c, states, a=a, d=d)
    for row in range(4):
        own = slice(row, row + 1)
        right, end = space_loop(x[own], dt[own], a, b[own], c[own], d, states[row])
        assert error(out[row], right[0]) < 1e-13
        assert error(ends[row], end) < 1e-13


@pytest.mark.parametrize("groups", [1, 2])
def test_state_space_equals_transformers(groups: int) -> None:
    x, dt, a, b, c, d, states = (one.float() for one in problems.state_space(groups=groups))
    out, ends = chunk_scan(x, dt, b, c, states, Chunks(LENS), a=a, d=d)
    right_out, right_ends = recorded("state_space" if groups == 1 else "state_space_2_groups")
    assert error(out, right_out) < 5e-5
    assert error(ends, right_ends) < 5e-5


# ---------------------------------------------------------------- convolution
def test_convolution_equals_transformers() -> None:
    x, weight, bias, tails = problems.convolution()
    y, ends = causal_conv(x, weight, bias, tails, ConvRows(LENS, 4))
    right, right_ends = recorded("convolution")
    assert error(y, right) < 1e-5
    assert error(ends, right_ends) < 1e-5


@pytest.mark.parametrize("cut", [(1, 2, 40), (2, 1, 1, 39), (43,), (1,) * 43])
def test_a_tail_carries_over_chunks_shorter_than_itself(cut: tuple[int, ...]) -> None:
    x, weight, bias, tails = problems.convolution(num=43, states=1)
    whole, end = causal_conv(x, weight, bias, tails, ConvRows([43], 4))
    pieces = []
    for piece in parts(x, cut):
        y, tails = causal_conv(piece, weight, bias, tails, ConvRows([len(piece)], 4))
        pieces.append(y)
    assert error(torch.cat(pieces), whole) < 1e-14
    assert torch.equal(tails, end)
    assert torch.equal(end[0], x[-3:])  # inputs, not outputs


# ---------------------------------------------------------------- latents
def naive_latent_attention(q: Tensor, latents: Tensor, w_uk: Tensor, w_uv: Tensor) -> Tensor:
    """Each query over the tokens up to its own, with every key and value written out."""
    size = w_uk.shape[2]
    outs = []
    for index, one in enumerate(q):
        seen = latents[: len(latents) - len(q) + index + 1]
        heads = []
        for head in range(len(w_uk)):
            keys = torch.cat((seen[:, :size] @ w_uk[head].T, seen[:, size:]), dim=1)
            shares = (keys @ one[head] * 0.3).softmax(0)
            heads.append(shares @ (seen[:, :size] @ w_uv[head].T))
        outs.append(torch.stack(heads))
    return torch.stack(outs)


@pytest.mark.parametrize("num", [1, 7])
@pytest.mark.parametrize("length", [7, 30])
def test_expanded_attention_equals_plain_attention(num: int, length: int) -> None:
    q, latents, w_uk, w_uv = problems.latents()
    q, latents = q[:num], latents[:length]
    right = naive_latent_attention(q, latents, w_uk, w_uv)
    assert error(attend_expanded(q, latents, torch.cat((w_uk, w_uv), 1), 0.3), right) < 1e-13


def test_latent_attention_of_several_requests_equals_the_expanded_form() -> None:
    q, latents, w_uk, w_uv = problems.latents()
    lens, weight = torch.tensor([30, 1, 17]), torch.cat((w_uk, w_uv), dim=1)
    padded = latents.repeat(3, 1, 1)
    padded[1, 1:] = torch.nan  # what lies behind a text is not read
    out = attend_latent(q[:3], padded, lens, weight, 0.3)
    for row, length in enumerate(lens.tolist()):
        right = attend_expanded(q[row : row + 1], latents[:length], weight, 0.3)
        assert error(out[row], right[0]) < 1e-13


# ---------------------------------------------------------------- sinks
def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """Causal scores `[T, H, L]`."""
    scores = torch.einsum("thd,lhd->thl", q, k) * 0.5
    return scores + torch.full((len(q), len(k)), -torch.inf).triu(len(k) - len(q) + 1)[:, None]


def test_sinks_equal_transformers() -> None:
    q, k, v, sink = problems.attention()
    scores = scores_of(q, k)
    out = torch.einsum("thl,lhd->thd", scores.softmax(-1), v)
    assert error(add_sink(out, scores.logsumexp(-1), sink), recorded("sinks")[0]) < 1e-5


def test_a_sink_counts_once_over_splits() -> None:
    q, k, v, sink = problems.attention()
    scores = scores_of(q, k)
    split = [slice(0, 3), slice(3, 9)]
    partial = torch.stack(
        [torch.einsum("thl,lhd->thd", scores[..., s].softmax(-1), v[s]) for s in split], dim=2
    ).nan_to_num(0.0)
    lse = torch.stack([scores[..., s].logsumexp(-1) for s in split], dim=2)
    merged, whole = merge_splits(partial, lse)
    right = recorded("sinks")[0]
    assert error(add_sink(merged, whole, sink), right) < 1e-5
    each = torch.stack([add_sink(partial[:, :, i], lse[:, :, i], sink) for i in (0, 1)], dim=2)
    assert error(merge_splits(each, lse)[0], right) > 1e-2


# ---------------------------------------------------------------- layout, damage
@pytest.mark.parametrize("lens", [(5,), (1, 1), (3, 8, 1, 4), (4, 4, 9)])
def test_each_round_has_the_next_chunk_of_each_request(lens: tuple[int, ...]) -> None:
    chunks = Chunks(lens, 4)
    x = torch.arange(1.0, sum(lens) + 1)[:, None, None]
    assert torch.equal(chunks.join(chunks.split(x)), x)
    dealt = chunks.split_scalars(x[:, 0])[:, 0]
    found: list[list[float]] = [[] for _ in lens]
    for rows, chunk in chunks.rounds:
        for request, own in zip(torch.arange(len(lens))[rows].tolist(), dealt[chunk], strict=True):
            found[request] += [float(token) for token in own if token]
    ends = list(accumulate(lens))
    assert found == [
        list(range(end - size + 1, end + 1)) for end, size in zip(ends, lens, strict=True)
    ]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_one_damaged_number_of_a_state_shows_in_its_next_output_and_in_no_other(bad: float) -> None:
    """So logits tell, and nothing has to look at the states themselves."""
    for damaged in range(2):
        q, k, v, g, beta, states = problems.gated_delta(num=2, states=2)
        states[damaged, 1, 2, 3] = bad
        outs = [
            recurrent_gated_delta_rule(q, k, v, g, beta, states)[0],
            chunk_gated_delta_rule(q, k, v, g, beta, states, Chunks([1, 1]))[0],
        ]
        x, dt, a, b, c, d, states = problems.state_space(num=2, states=2)
        states[damaged, 1, 2, 3] = bad
        outs += [
            selective_state_update(x, dt, b, c, states, a=a, d=d)[0],
            chunk_scan(x, dt, b, c, states, Chunks([1, 1]), a=a, d=d)[0],
        ]
        for out in outs:
            assert not out[damaged].isfinite().all()
            assert out[1 - damaged].isfinite().all()
