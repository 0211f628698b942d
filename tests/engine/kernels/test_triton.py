"""The Triton kernels in the engine, under Triton's interpreter in a child process.

What a kernel may do wrong is the business of the kernel checker; here: the launchers, the backend,
and the engine around them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.attention import get_backend
from mini_vllm.kernels.attention import choose_num_splits

pytest.importorskip("triton", reason="Triton exists on Linux only")
ROOT = Path(__file__).parents[3]


def interpreted(part: str) -> Any:
    child = subprocess.run(
        [sys.executable, "tests/engine/kernels/interpreted.py", part],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return json.loads(child.stdout.splitlines()[-1])


def test_kernels_equal_plain_torch() -> None:
    errors = interpreted("kernels")
    assert len(errors) == 43
    bounds = {
        "fp16-gqa4": 2e-3,
        "fp16-gqa4-tiled": 2e-3,
        "qkv-half": 4e-3,
        "gemv-1": 2e-2,
        "gemv-3": 2e-2,
        "gemv-5": 2e-2,
    }
    wrong = {name: error for name, error in errors.items() if not error < bounds.get(name, 5e-6)}
    assert not wrong


def test_engine_gives_the_same_tokens_launched_and_replayed() -> None:
    llm = LLM("storyteller-draft", dtype="float32", max_model_len=64, max_num_seqs=3)
    params = [SamplingParams(temperature=t, seed=7, max_tokens=4) for t in (0, 0.8)]
    outputs = llm.generate(["The capital", "Once upon a time"], params, use_tqdm=False)
    expected = [list(output.outputs[0].token_ids) for output in outputs]
    found = interpreted("engine")
    assert found["launched"] == found["replayed"] == expected
    for name in ("launched", "replayed"):  # a replay sorts its own lengths
        orders = found[f"{name} orders"]
        assert all(order == sorted(order, reverse=True) for order in orders)
        assert max(map(max, orders)) > max(orders[0])


def test_a_replayed_steps_inputs_are_those_of_plain_torch_in_one_launch_a_group() -> None:
    found = interpreted("replayed_inputs")
    assert found["plain"]["groups"] == 1 < found["groups"]["groups"]
    for model in found.values():
        assert len(model["launches"]) > 3 and set(model["launches"]) == {model["groups"]}
        assert model["wrong"] == []


def test_triton_backend_needs_a_gpu_or_the_interpreter() -> None:
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        get_backend("cpu", "triton")


@pytest.mark.parametrize(
    ("programs", "max_seq_len", "processors", "splits"),
    [
        (512, 4096, 132, 1),  # requests and heads fill the GPU
        (8, 4096, 132, 16),  # 8 * 16 < 2 * 132 would ask for 64: limited by 256 tokens a split
        (8, 100_000, 132, 32),  # never more than 32
        (8, 200, 132, 1),  # too short to split
        (128, 4096, 132, 4),
    ],
)
def test_number_of_splits(programs: int, max_seq_len: int, processors: int, splits: int) -> None:
    assert choose_num_splits(programs, max_seq_len, processors) == splits


@pytest.mark.slow
def test_compiled_model_gives_the_same_tokens() -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    prompts = ["Once upon a time", "The capital of"]
    tokens = []
    for compile_model in (False, True):
        llm = LLM(
            "storyteller-draft", dtype="float32", max_model_len=64, compile_model=compile_model
        )
        outputs = llm.generate(prompts, params, use_tqdm=False)
        tokens.append([list(output.outputs[0].token_ids) for output in outputs])
    assert tokens[0] == tokens[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: there is no CUDA device here")
@pytest.mark.parametrize("enforce_eager", [True, False])
def test_gpu_gives_the_tokens_of_the_cpu(enforce_eager: bool) -> None:
    params = SamplingParams(temperature=0, max_tokens=32)
    prompts = ["Once upon a time", "The capital of", "One day a fox met"]
    tokens = []
    for kwargs in ({"device": "cpu"}, {"device": "cuda", "enforce_eager": enforce_eager}):
        llm = LLM("storyteller", dtype="float32", max_model_len=256, max_num_seqs=8, **kwargs)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        tokens.append([list(output.outputs[0].token_ids) for output in outputs])
    assert tokens[0] == tokens[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: there is no CUDA device here")
def test_gpu_step_waits_for_the_device_only_for_its_tokens() -> None:
    llm = LLM("storyteller", max_model_len=256, max_num_seqs=8)
    core = llm.engine.core
    params = SamplingParams(temperature=0.6, max_tokens=64, seed=1)
    stream = llm.stream(["Once upon a time", "The capital of"], params)
    for _ in range(8):
        next(stream)
    waits = 0
    original = torch.Tensor.cpu

    def counted(self: torch.Tensor) -> torch.Tensor:
        nonlocal waits
        waits += 1
        torch.cuda.set_sync_debug_mode("default")
        try:
            return original(self)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    torch.Tensor.cpu = counted  # type: ignore[method-assign]
    torch.cuda.set_sync_debug_mode("error")
    try:
        core.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.Tensor.cpu = original  # type: ignore[method-assign]
    assert waits == 1
