"""Bytes, links, and where they meet."""

from __future__ import annotations

import math

import pytest

from mini_vllm import LLM
from mini_vllm.kv_transfer.economics import (
    LINKS,
    SHAPES,
    break_even_tokens,
    kv_bytes_per_token,
    load_seconds,
    table,
)


def test_bytes_of_a_token() -> None:
    sizes = {name: kv_bytes_per_token(shape) for name, shape in SHAPES.items()}
    assert sizes["Qwen3-0.6B"] == 114_688 and sizes["Llama-3.1-70B"] == 327_680
    llm = LLM("storyteller", dtype="float32", num_gpu_blocks=8, max_model_len=32)
    context = llm.engine.core.executor.call("kv_context", 8)[0]
    assert sizes["storyteller"] * context.block_size == context.bytes_per_block


def test_carrying_meets_computing_at_the_break_even_length() -> None:
    tokens = break_even_tokens(131_072, LINKS["100 GbE"], 20_000, fixed_seconds=0.01)
    assert load_seconds(1, 131_072, LINKS["100 GbE"], 0.01) > 1 / 20_000
    at = load_seconds(round(tokens), 131_072, LINKS["100 GbE"], 0.01)
    assert at == pytest.approx(tokens / 20_000, rel=0.01)


def test_a_link_that_is_too_slow_never_pays() -> None:
    assert break_even_tokens(131_072, LINKS["10 GbE"], 20_000) == math.inf
    assert break_even_tokens(131_072, 20_000 * 131_072.0, 20_000, 1e-3) == math.inf
    assert break_even_tokens(131_072, LINKS["NVMe"], 20_000) == 0
    assert len(table(20_000)) == len(SHAPES) * len(LINKS)
