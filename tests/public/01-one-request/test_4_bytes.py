"""Task 01.4: the bytes of one forward pass. The tiny shape is that of test_3_flops.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.observability.roofline import step_bytes

WEIGHTS = 2 * 5184 + 24 * 59  # 2 layers and the head
KV = 2 * 2 * 2 * 8  # per token: keys and values, 2 layers, 2 KV heads of 8


def test_01_4_one_token_alone(shape: Any) -> None:
    """Every weight once; the token's keys and values are written, and read by itself."""
    state = {"weights": WEIGHTS, "KV of a token": KV}
    expected = 2 * (WEIGHTS + 2 * KV)
    expect(step_bytes(shape, [1], [1], 2), expected, at="1 token, 2 bytes a number", **state)


def test_01_4_every_layer_is_read(shape: Any) -> None:
    """A wider MLP is more weights in each layer."""
    wider = replace(shape, intermediate_size=41)
    more = step_bytes(wider, [1], [10], 2) - step_bytes(shape, [1], [10], 2)
    at = "an MLP of 41 instead of 40: 3 * 24 more weights in each of 2 layers, 2 bytes each"
    expect(more, 2 * 2 * 72, at=at)


def test_01_4_the_heads_matrix_is_read_once(shape: Any) -> None:
    """A larger vocabulary is more rows of the head; of the embedding only a few rows are read."""
    larger = replace(shape, vocab_size=60)
    more = step_bytes(larger, [1], [10], 2) - step_bytes(shape, [1], [10], 2)
    expect(more, 2 * 24, at="a vocabulary of 60 instead of 59: 24 numbers more, 2 bytes each")


def test_01_4_weights_are_read_once_for_all(shape: Any) -> None:
    """A second request adds its keys and values, and no weight."""
    one, two = step_bytes(shape, [1], [10], 2), step_bytes(shape, [1, 1], [10, 10], 2)
    expect(two - one, 2 * 11 * KV, at="two decodes with a context of 10, minus one of them")


def test_01_4_weights_do_not_grow_with_the_prompt(shape: Any) -> None:
    """A longer prompt adds keys and values, and no weight."""
    short, long = step_bytes(shape, [10], [10], 2), step_bytes(shape, [20], [20], 2)
    expect(long - short, 2 * 20 * KV, at="a prompt of 20 minus a prompt of 10: 10 read, 10 written")


OTHER_SHAPES = {
    "tiny": {},
    "one-layer": {"num_hidden_layers": 1},
    "hidden-16": {"hidden_size": 16},
    "4-kv-heads": {"num_key_value_heads": 4},
}


@pytest.mark.parametrize("change", OTHER_SHAPES.values(), ids=OTHER_SHAPES.keys())
def test_01_4_the_whole_context_is_read(shape: Any, change: dict[str, int]) -> None:
    """Each further token of context is a key and a value of every KV head, in every layer."""
    shape = replace(shape, **change)
    near, far = step_bytes(shape, [1], [10], 2), step_bytes(shape, [1], [11], 2)
    at = "a decode with a context of 11, minus one with a context of 10, 2 bytes a number"
    layers, heads = shape.num_hidden_layers, shape.num_key_value_heads
    expect(far - near, 2 * 2 * layers * heads * 8, at=at, layers=layers, kv_heads=heads, head_dim=8)


def test_01_4_new_tokens_are_written(shape: Any) -> None:
    """Two steps that end at the same length differ by what they write."""
    decode, chunk = step_bytes(shape, [1], [10], 2), step_bytes(shape, [4], [10], 2)
    expect(chunk - decode, 2 * 3 * KV, at="a chunk of 4 minus a decode, both end at length 10")


def test_01_4_every_number_has_itemsize_bytes(shape: Any) -> None:
    """float32 moves twice as much as bfloat16, weights and KV alike."""
    half, full = step_bytes(shape, [3], [7], 2), step_bytes(shape, [3], [7], 4)
    expect(full, 2 * half, at="itemsize 4 and itemsize 2", half=half)


def test_01_4_qwen3_keeps_112_kib_a_token(qwen3: Any) -> None:
    """Qwen3-0.6B: 28 layers, 8 KV heads of 128, keys and values, 2 bytes: 114,688 a token."""
    near, far = step_bytes(qwen3, [1], [1000], 2), step_bytes(qwen3, [1], [1001], 2)
    expect(far - near, 114_688, at="one more token of context, bfloat16")
    expected = 2 * 595_984_384 + 1001 * 114_688
    expect(near, expected, at="a decode with a context of 1000, bfloat16")
