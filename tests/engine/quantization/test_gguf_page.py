"""The page on GGUF in phase 09: its bytes, sizes and answers are what the code gives."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import Q4_K, quantize

from mini_vllm.gguf import TYPES
from mini_vllm.model.layers import Linear
from mini_vllm.model.layout import Part
from mini_vllm.quantization.gguf import GROUP, GGUFLinearMethod, split_blocks

ROOT, NINE = Path(__file__).parents[3], "09-quantization"
PAGE = ROOT / "phases" / NINE / "04-gguf.md"
KINDS = {kind.name: kind for kind in TYPES.values()}
WEIGHTS = np.array([[-0.6 + 0.05 * i for i in range(32)]], dtype=np.float32)


@pytest.fixture(scope="module")
def page() -> str:
    return " ".join(PAGE.read_text(encoding="utf-8").split())


def test_the_block_is_the_one_of_the_package(page: str) -> None:
    block = quantize(WEIGHTS, GGMLQuantizationType.Q4_1)
    assert " ".join(f"{byte:02x}" for byte in block[0]) in page
    q, scale, shift = split_blocks(torch.from_numpy(block).view(1, 1, 20), "Q4_1")
    assert (q[0, 0].item(), q[0, 16].item()) == (0, 8)
    weights = q.float() * scale.float() + shift.float()
    assert f"{weights[0, 16]:.3f}" == "0.227" and "= 0.227" in page
    assert f"{weights[0, 31]:.3f}" == "0.950" and "= 0.950" in page
    step = scale.item() / 2
    assert (weights - torch.from_numpy(WEIGHTS)).abs().max() <= step + 1e-3
    assert f"{step:.3f}" == "0.052"


def test_the_table_has_the_sizes_of_the_blocks(page: str) -> None:
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        row = re.search(rf"\| {name} \|[^|]*\|[^|]*\| (\d+) \|", page)
        assert row is not None and int(row[1]) == KINDS[name].num_bytes
    assert "144 bytes" in page and KINDS["Q4_K"].num_bytes == 144


def test_the_answers(page: str) -> None:
    bits = {name: 8 * kind.num_bytes / kind.weights for name, kind in KINDS.items()}
    found = [f"{bits[name]:g}" for name in ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")]
    assert f"1. {', '.join(found[:-1])} and {found[-1]}." in page
    layers = 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576)
    embedding, norms = 49152 * 576, 61 * 576 * 4
    sizes = [layers, layers * bits["Q4_1"] / 8, embedding, embedding * bits["Q8_0"] / 8, norms]
    for number in sizes:
        assert f"{int(number):,}" in page
    assert 98_362_432 - sizes[1] - sizes[3] < 2_000_000
    scales = np.array([[0x85, 0, 0, 0, 0x4A, 0, 0, 0, 0x73, 0, 0, 0]], dtype=np.uint8)
    s, m = Q4_K.get_scale_min(scales)
    assert (s[0, 0], m[0, 0], s[0, 4], m[0, 4]) == (5, 10, 35, 23)
    assert "s0 = 5, m0 = 10, s4 = 3 + 2 x 16 = 35, m4 = 7 + 1 x 16 = 23" in page


def test_a_rank_cannot_begin_inside_a_block() -> None:
    linear = Linear(96, 64, bias=False)
    linear.input_size = 48
    with pytest.raises(ValueError, match=r"has 48 columns here; blocks of Q4_1 need a multiple"):
        GGUFLinearMethod("Q4_1").create_weights(linear)
    linear.input_size = 96
    GGUFLinearMethod("Q4_1").create_weights(linear)
    with pytest.raises(ValueError, match=rf"begins at 48, inside a group of {GROUP}"):
        linear.qweight.spec.entries(Part(slice(0, 64), slice(48, 96)))


def test_the_labs_quote_the_results() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "smollm2.json").read_text())

    def labs(phase: str) -> str:
        return " ".join((ROOT / "phases" / phase / "03-labs.md").read_text().split())

    costs = results["perplexity"]
    kept = costs["the file's blocks"]
    assert f"float32 {costs['float32']:.1f}, bfloat16 {costs['bfloat16']:.1f}" in labs(NINE)
    assert f"as they are {kept:.1f}, int8 {costs['int8']:.1f}" in labs(NINE)
    assert f"int4 {costs['int4, groups of 64']:.1f}" in labs(NINE)
    asked, repeated = (results["ngram"][k] for k in ("an open question", "a text to repeat"))
    said = f"{asked['tokens']} tokens in {asked['steps']} steps for the open question"
    assert said in labs("08-spec-decode")
    assert f"{repeated['tokens']} in {repeated['steps']} for both" in labs("08-spec-decode")
    masks = [results["index"][name] for name in ("person", "date", "200 letters")]
    first = [row["first_ms"] for row in masks]
    assert f"{min(first):.0f} to {max(first):.0f} ms for a first mask" in labs(
        "12-structured-output"
    )
    assert max(row["again_ms"] for row in masks) < 0.01
    speed = results["speed"]
    page = (ROOT / "docs" / "speed.md").read_text()
    for count in (1, 16):
        names = ("mini_vllm", "mini_vllm, blocks kept", "hf")
        rates = [f"{speed[f'{count} x {name}']['tokens_per_s']:.0f}" for name in names]
        assert f"| {count} | {' | '.join(rates)} |" in page
    assert f"after {results['chat']['warm']['first_token_s']:.1f} s" in page
