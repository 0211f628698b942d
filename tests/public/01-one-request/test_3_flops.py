"""Task 01.3: the operations of one forward pass.

The tiny shape, for counting by hand: hidden 24, 2 layers, 4 query heads and 2 KV heads of 8
numbers, MLP of 40, vocabulary 59. So one layer has 24 * (32 + 2 * 16) + 32 * 24 + 3 * 24 * 40 =
5184 weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.observability.roofline import layer_weights, step_flops

LAYERS = 2 * 2 * 5184  # per token: 2 layers, a multiplication and an addition per weight
HEAD = 2 * 24 * 59  # per request
PAIR = 2 * 4 * 4 * 8  # per pair of tokens: 2 layers, 4 operations, 4 heads of 8


def test_01_3_one_token_alone(shape: Any) -> None:
    """One token meets every weight with 2 operations, the head's too, and itself."""
    expect(layer_weights(shape), 5184, at="weights of a layer (supplied)")
    state = {"layers": LAYERS, "head": HEAD, "one pair": PAIR}
    expect(step_flops(shape, [1], [1]), LAYERS + HEAD + PAIR, at="a prompt of 1 token", **state)


def test_01_3_every_weight_meets_every_new_token(shape: Any) -> None:
    """A wider MLP costs 2 operations per further weight, layer and new token."""
    wider = replace(shape, intermediate_size=41)
    more = step_flops(wider, [3], [10]) - step_flops(shape, [3], [10])
    at = "3 new tokens; an MLP of 41 instead of 40, so 3 * 24 more weights in each of 2 layers"
    expect(more, 2 * 72 * 2 * 3, at=at)


@pytest.mark.parametrize("layers", [2, 1])
def test_01_3_the_head_is_paid_once_a_request(shape: Any, layers: int) -> None:
    """Only the last token of a prompt needs logits, and the head stands behind all layers."""
    small = replace(shape, num_hidden_layers=layers)
    large = replace(small, vocab_size=60)
    more = step_flops(large, [3], [3]) - step_flops(small, [3], [3])
    at = f"a prompt of 3 tokens, {layers} layer(s): what a vocabulary of 60 instead of 59 adds"
    expect(more, 2 * 24, at=at)


OTHER_SHAPES = {
    "tiny": {},
    "one-layer": {"num_hidden_layers": 1},
    "hidden-32": {"hidden_size": 32},
    "4-kv-heads": {"num_key_value_heads": 4},
}


@pytest.mark.parametrize("change", OTHER_SHAPES.values(), ids=OTHER_SHAPES.keys())
def test_01_3_one_more_token_of_context(shape: Any, change: dict[str, int]) -> None:
    """It costs a decode one pair: 4 operations per number of every query head, in every layer."""
    shape = replace(shape, **change)
    more = step_flops(shape, [1], [11]) - step_flops(shape, [1], [10])
    at = "a decode with a context of 11, minus one with a context of 10: one pair more"
    layers, heads = shape.num_hidden_layers, shape.num_attention_heads
    expect(more, layers * 4 * heads * 8, at=at, layers=layers, query_heads=heads, head_dim=8)


def test_01_3_a_chunk_meets_what_stands_before_it(shape: Any) -> None:
    """Each of the new tokens meets what stands before the chunk: 3 tokens, 3 pairs a token."""
    more = step_flops(shape, [3], [10]) - step_flops(shape, [3], [9])
    at = "a chunk of 3 tokens behind 7 others, minus the same chunk behind 6"
    expect(more, 3 * PAIR, at=at, pair=PAIR)


def test_01_3_a_prompt_meets_itself(shape: Any) -> None:
    """Tokens 1, 2 and 3 of a prompt meet 1 + 2 + 3 tokens."""
    expected = 3 * LAYERS + HEAD + 6 * PAIR
    at = "a prompt of 3 tokens: 3 times the layers, 1 + 2 + 3 pairs, one head"
    expect(step_flops(shape, [3], [3]), expected, at=at, layers=LAYERS, head=HEAD, pair=PAIR)


def test_01_3_two_chunks_cost_one_head_more(shape: Any) -> None:
    """Cutting a prompt in two changes neither layers nor attention."""
    whole = step_flops(shape, [10], [10])
    halves = step_flops(shape, [6], [6]) + step_flops(shape, [4], [10])
    expect(halves - whole, HEAD, at="a prompt of 10 in chunks of 6 and 4, minus the same in one")


def test_01_3_requests_add_up(shape: Any) -> None:
    """A batch costs what its requests cost: sharing weights saves no operation."""
    together = step_flops(shape, [5, 1, 1], [5, 9, 30])
    alone = [step_flops(shape, [n], [length]) for n, length in ((5, 5), (1, 9), (1, 30))]
    expect(together, sum(alone), at="a prefill of 5 and two decodes in one step", alone=alone)


def test_01_3_qwen3_takes_about_two_operations_per_weight(qwen3: Any) -> None:
    """Qwen3-0.6B has 596 million weights, so a token takes about 1.2 billion operations."""
    weights, pair = 595_984_384, 28 * 4 * 16 * 128
    at = "Qwen3-0.6B, one decode with a context of 1000"
    expect(step_flops(qwen3, [1], [1000]), 2 * weights + 1000 * pair, at=at)
