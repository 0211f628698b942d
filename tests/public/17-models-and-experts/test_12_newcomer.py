"""Task 17.12: bring up a family that the engine does not have. The checkpoint is tiny, and what
transformers says of it is recorded in `newcomer.json`, layer by layer."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.model.families import flex_olmo

CONFIG = dict(
    num_hidden_layers=2, num_experts=6, num_experts_per_tok=3, intermediate_size=48,
    norm_topk_prob=False,
)  # fmt: skip


def test_17_12_the_experts_of_the_config() -> None:
    """`args` gives the field "moe"."""
    found = flex_olmo.args(CONFIG)
    expect([*found], ["moe"], at="the fields of args(config)")
    moe = found["moe"]
    expect((moe.num_experts, moe.num_experts_per_tok), (6, 3), at="experts, and those of a token")
    expect(moe.moe_intermediate_size, 48, at="an expert's size")
    expect((moe.routing, moe.norm_topk_prob), ("fused_topk", False), at="the router")
    told = flex_olmo.args(CONFIG | {"norm_topk_prob": True, "hidden_act": "gelu_pytorch_tanh"})[
        "moe"
    ]
    expect(told.norm_topk_prob, True, at="norm_topk_prob true")
    expect((moe.hidden_act, told.hidden_act), ("silu", "gelu_pytorch_tanh"), at="hidden_act")


def test_17_12_every_layer_has_experts() -> None:
    """`parts` builds experts in every layer, however many layers there are."""
    for layers in (1, 5):
        parts = flex_olmo.parts(CONFIG | {"num_hidden_layers": layers})
        kinds = [parts.feed_forward(index) for index in range(layers)]
        expect(kinds, ["moe"] * layers, at=f"the feed-forwards of {layers} layers")


def test_17_12_layer_by_layer(newcomer: Any) -> None:
    """Behind each layer stands what transformers says; the first that differs is where to look."""
    try:
        ours = newcomer.layer_states()
    except ValueError as error:  # a tensor that our model lacks, or that the file lacks
        raise AssertionError(f"the checkpoint does not load: {error}") from None
    for index, (state, right) in enumerate(zip(ours, newcomer.states, strict=True)):
        if state != pytest.approx(right, abs=1e-3):
            shown = [[round(x, 3) for x in values[:4]] for values in (state, right)]
            expect(*shown, at=f"the last token behind layer {index}, its first four numbers")
            raise AssertionError(f"layer {index} differs behind the fourth number")


def test_17_12_answers_of_transformers(newcomer: Any) -> None:
    """The greedy tokens of three prompts in one batch are transformers'."""
    try:
        found = newcomer.generate()
    except ValueError as error:
        raise AssertionError(f"the checkpoint does not load: {error}") from None
    expect(found, newcomer.tokens, at="8 tokens behind each of three prompts")
