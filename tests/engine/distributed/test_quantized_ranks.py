"""Packed weights over ranks: cut where they can be, and refused by name where they cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mini_vllm import LLM, SamplingParams
from mini_vllm.distributed.linear import ModelParallel
from mini_vllm.distributed.parallel_state import GroupCoordinator
from mini_vllm.distributed.simulated import SimulatedGroup, run_ranks
from mini_vllm.model.build import load_model
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.quantization.int8 import quantize_per_token
from mini_vllm.quantization.oneshot.calibrate import run_prompt
from tests.engine.quantization.formats import write
from tests.engine.quantization.test_formats import (
    CT_FP8,
    DYNAMIC,
    FORMATS,
    FP8_FORMATS,
    PROMPT,
    fp8,
)

ALONE = GroupCoordinator([0], 0)
SHAPE = dict(intermediate_size=128, head_dim=32)
"""Two ranks have 64 columns each of o_proj and down_proj, and 32 rows each of k and v."""
REFUSED = {
    "ct order": "o_proj' has its columns in groups by g_idx",
    "ct dynamic order": "o_proj' has its columns in groups by g_idx",
    "gptq order": "o_proj' has its columns in groups by g_idx",
    "fp8 block": "o_proj.weight_scale_inv: a part begins at 64, inside a group of 48",
    "fp8 odd block": "qkv_proj.weight_scale_inv: a part begins at 64, inside a group of 40",
}


def int8(name: str, rows: int, columns: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.1
    numbers, scale = quantize_per_token(weight)
    return {"weight": numbers, "weight_scale": scale}, numbers.float() * scale


INT8 = {
    **CT_FP8,
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            "input_activations": {**DYNAMIC, "type": "int"},
        }
    },
}
BLOCKS = dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[32, 32])
EXACT = {
    **{name: each for name, each in (FORMATS | FP8_FORMATS).items() if name not in REFUSED},
    "fp8 blocks of 32": (BLOCKS, fp8((32, 32), "weight_scale_inv")),
}


def logits_alone(folder: Path, quantization: str | None = None) -> Tensor:
    quant = get_quantization_config(folder, quantization)
    return run_prompt(load_model(folder, quant=quant), PROMPT)


def logits_of_two(folder: Path, quantization: str | None = None) -> list[Tensor]:
    def work(group: SimulatedGroup) -> Tensor:
        quant = get_quantization_config(folder, quantization)
        model = load_model(folder, quant=quant, parallel=ModelParallel(group, ALONE))
        return run_prompt(model, PROMPT)

    return run_ranks(2, work)


@pytest.mark.parametrize("name", EXACT)
def test_two_ranks_of_packed_weights_are_the_model(name: str, tmp_path: Path) -> None:
    """Each rank's words, scales and zeros mean its rows and columns of the same matrix."""
    folder = write(tmp_path, *EXACT[name], changes=SHAPE)
    expected = logits_alone(folder)
    for logits in logits_of_two(folder):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_int8_weights_are_cut_exactly(tmp_path: Path) -> None:
    """Rows keep their scale on every rank. What goes into a row-parallel layer is rounded with a
    scale for each rank's columns, so the result is not the same to the bit: it is as good."""
    folder = write(tmp_path, INT8, int8, changes=SHAPE)
    plain, expected = logits_alone(folder / "plain"), logits_alone(folder)
    error = (expected - plain).std()
    for logits in logits_of_two(folder):
        assert (logits - plain).std() < 1.2 * error
        assert (logits - expected).std() < 1.5 * error


@pytest.mark.parametrize(("quantization", "bound"), [("int8", 1.2), ("fp8", 1.2)])
def test_rounded_while_loading(quantization: str, bound: float, tmp_path: Path) -> None:
    """Each rank finds scales of its own for the part of a row that it has."""
    folder = write(tmp_path, INT8, int8, changes=SHAPE) / "plain"
    plain, expected = logits_alone(folder), logits_alone(folder, quantization)
    error = (expected - plain).std()
    for logits in logits_of_two(folder, quantization):
        assert (logits - plain).std() < bound * error


OPTIONS: dict[str, Any] = dict(
    dtype="float32",
    skip_tokenizer_init=True,
    max_model_len=64,
    num_gpu_blocks=32,
    block_size=8,
    device="cpu",
)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused_before_a_process_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "multiprocessing.process.BaseProcess.start", lambda *_: pytest.fail("started")
    )
    folder = write(tmp_path, *(FORMATS | FP8_FORMATS)[name], changes=SHAPE)
    message = rf"tensor_parallel_size is 2: .*{REFUSED[name]}"
    with pytest.raises(ValueError, match=message):
        LLM(str(folder), tensor_parallel_size=2, **OPTIONS)


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("name", ["gptq", "awq", "ct asym", "fp8 dynamic"])
def test_two_processes_say_the_same(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path, *EXACT[name], changes=SHAPE)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    said = []
    for tp in (1, 2):
        llm = LLM(str(folder), tensor_parallel_size=tp, **OPTIONS)
        try:
            outputs = llm.generate([PROMPT, PROMPT[::-1]], params, use_tqdm=False)
            said.append([output.outputs[0].token_ids for output in outputs])
        finally:
            llm.shutdown()
    assert said[0] == said[1]
