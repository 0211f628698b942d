"""Chunks of prompts, the search for a layer, and the newcomer's table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

many = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)

POOL = """
import torch
from mini_vllm.pooling.seqwise import pool_chunk

states = torch.tensor(states, dtype=getattr(torch, dtype))
kept, found, held, end, length = [], [], [], 0, len(states)
for number, size in enumerate(sizes):
    if size == 0:  # preempted: from the first token on
        end = 0
        continue
    chunk = states[end : end + size].clone()
    end += size
    result = pool_chunk(kind, chunk, end, length, kept)
    found.append(None if result is None else [result.double().clone(), str(result.dtype)])
    chunk.fill_(-99)
    held.append(sum(rows.numel() for rows in kept) // states.shape[1])
told = [found, held]
"""


@many
@given(
    seed=seeds,
    kind=st.sampled_from(["LAST", "CLS", "MEAN", "ALL", "STEP"]),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    again=st.integers(0, 6),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
@example(0, "CLS", [1, 1, 1], 2, "float32")
@example(0, "CLS", [3, 2], 0, "float32")
@example(0, "MEAN", [2, 3], 1, "float32")
def test_17_10_chunks_of_any_size(
    ask: Any, seed: int, kind: str, sizes: list[int], again: int, dtype: str
) -> None:
    """Every kind, with a preemption behind some chunk; only the last chunk has an answer."""
    rng = np.random.default_rng(seed)
    states = rng.integers(-8, 8, (sum(sizes), 3)).astype(np.float64)
    given_sizes = [*sizes[: again % len(sizes)], 0, *sizes] if again else sizes
    found, held = ask(POOL, states=states.tolist(), sizes=given_sizes, kind=kind, dtype=dtype)
    *early, last = found
    assert early == [None] * len(early) and last is not None
    wanted = {"LAST": states[-1:], "CLS": states[:1], "MEAN": states.mean(0, keepdims=True)}
    right = wanted.get(kind, states)
    assert np.asarray(last[0]).shape == right.shape
    assert np.allclose(last[0], right, rtol=1e-6, atol=1e-6)
    assert last[1] == ("torch.float32" if kind == "MEAN" else f"torch.{dtype}")
    assert held[-1] == 0
    if kind in ("LAST", "CLS", "MEAN"):
        assert max(held) <= (0 if kind == "LAST" else 1)


@pytest.mark.parametrize("kind", ["CLS", "MEAN", "ALL"])
def test_17_10_preempted_then_whole_at_once(ask: Any, kind: str) -> None:
    """A request is preempted behind two of its five tokens, and comes back with all in one chunk:
    what the first chunk left counts no more."""
    states = [[1.0, 2.0], [3.0, 5.0], [4.0, 4.0], [0.0, 1.0], [2.0, 8.0]]
    found, held = ask(POOL, states=states, sizes=[2, 0, 5], kind=kind, dtype="float32")
    wanted = {"CLS": states[:1], "MEAN": [[2.0, 4.0]]}.get(kind, states)
    assert np.allclose(found[-1][0], wanted) and held[-1] == 0


def test_17_10_a_long_prompt_in_bfloat16(ask: Any) -> None:
    """4,000 states of 1.0: a sum in bfloat16 stays at 256, and one of chunks in bfloat16 loses
    some."""
    found, held = ask(POOL, states=[[1.0]] * 4001, sizes=[1333, 1333, 1335], kind="MEAN",
                      dtype="bfloat16")  # fmt: skip
    assert np.asarray(found[-1][0]).tolist() == [[1.0]] and max(held) == 1


EMBED = """
import torch
from mini_vllm.pooling.seqwise import embedding

pooled = torch.tensor(pooled)
before = pooled.clone()
told = [embedding(pooled, dimensions, normalizes), bool((pooled == before).all())]
"""


@many
@given(
    seed=seeds,
    rows=st.integers(1, 5),
    size=st.integers(1, 9),
    normalizes=st.booleans(),
    cuts=st.booleans(),
)
def test_17_10_cut_before_they_are_normalised(
    ask: Any, seed: int, rows: int, size: int, normalizes: bool, cuts: bool
) -> None:
    """Each row by itself, rows of zeros among them; what was given stays."""
    rng = np.random.default_rng(seed)
    pooled = rng.normal(size=(rows, size)).astype(np.float32) * np.float32(rng.choice([1, 1e-3]))
    pooled[rng.random(rows) < 0.2] = 0
    dimensions = int(rng.integers(1, size + 1)) if cuts else None
    found, same = ask(EMBED, pooled=pooled.tolist(), dimensions=dimensions, normalizes=normalizes)
    wanted = pooled[:, :dimensions].astype(np.float64)
    if normalizes:
        lengths = np.linalg.norm(wanted, axis=-1, keepdims=True)
        wanted = wanted / np.where(lengths > 0, lengths, 1)
    assert np.asarray(found).shape == wanted.shape
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-7) and same is True


SEARCH = """
from mini_vllm.model.bring_up import first_difference

told = []
for first in range(layers + 1):
    asked = []

    def differs(index):
        asked.append(index)
        return index >= first

    told.append([first_difference(layers, differs), asked])
"""


@many
@given(layers=st.integers(0, 130))
@example(0)
@example(1)
@example(61)
@example(128)
def test_17_11_any_layer_of_any_model(ask: Any, layers: int) -> None:
    """Each may be the first that differs, or none: never asked twice, nor beyond the last, nor more
    often than there are bits."""
    for first, (found, asked) in enumerate(ask(SEARCH, layers=layers)):
        assert found == (first if first < layers else None) and type(found) is not bool
        assert len(set(asked)) == len(asked) <= layers.bit_length()
        assert all(0 <= index < layers for index in asked)


TABLE = """
from dataclasses import astuple
from mini_vllm.model.families import flex_olmo

before = repr(config)
parts = flex_olmo.parts(config)
layers = range(config["num_hidden_layers"])
told = [
    parts.norm, list(astuple(parts.norms)), parts.is_parallel,
    [parts.mixer(index) for index in layers], [parts.feed_forward(index) for index in layers],
    parts.qk_norm, parts.norms_after_rotation, [parts.turns(index) for index in layers],
    parts.turns_neighbours, [parts.chunk(index) for index in layers], parts.has_sinks,
    parts.attention_softcap, parts.embedding_scale, parts.residual_scale, parts.logit_scale,
    parts.logit_softcap, parts.has_head_bias, parts.query_growth,
]
found = flex_olmo.args(config)
moe = found["moe"]
told += [
    sorted(key for key, value in found.items() if key == "moe" or value),
    moe.num_experts, moe.num_experts_per_tok, moe.moe_intermediate_size, moe.routing,
    moe.norm_topk_prob, moe.hidden_act, moe.has_correction_bias, moe.router_bias, moe.expert_bias,
    moe.shared_expert_intermediate_size, moe.is_transposed, moe.is_interleaved,
    list(moe.dense_layers), repr(config) == before,
]
"""


@many
@given(
    layers=st.integers(1, 40),
    experts=st.integers(1, 64),
    size=st.integers(1, 4096),
    renormalizes=st.booleans(),
    act=st.sampled_from(["silu", "gelu_pytorch_tanh", None]),
    data=st.data(),
)
def test_17_12_the_table_of_any_config(
    ask: Any, layers: int, experts: int, size: int, renormalizes: bool, act: Any, data: Any
) -> None:
    """What the layers are built of, and their experts, by what the config says."""
    k = data.draw(st.integers(1, experts))
    config = dict(num_hidden_layers=layers, num_experts=experts, num_experts_per_tok=k,
                  intermediate_size=size, norm_topk_prob=renormalizes)  # fmt: skip
    config["moe_intermediate_size"] = size + 1  # another family's word
    if act is not None:
        config["hidden_act"] = act
    norms = [None, "post_attention_layernorm", None, "post_feedforward_layernorm"]
    assert ask(TABLE, config=config) == [
        "rms", norms, False, ["attention"] * layers, ["moe"] * layers, "all", False,
        [True] * layers, False, [None] * layers, False, None, 1.0, 1.0, 1.0, None, False, None,
        ["moe"], experts, k, size, "fused_topk", renormalizes, act or "silu", False, False, False,
        0, False, False, [], True,
    ]  # fmt: skip
