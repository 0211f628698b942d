"""Greedy tokens in float32 are those of Hugging Face, however a model is spread over workers.

The shapes are odd on purpose: KV heads that are repeated, a vocabulary and layers that do not
divide, biases everywhere, heads tied and not. Prompts come in chunks, and the pool is so small
that requests are preempted.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.exceptions import EngineDeadError
from tests.engine.entrypoints.server import Server
from tests.engine.pace import PATIENCE, eventually

pytestmark = [pytest.mark.slow, pytest.mark.serial]
GAP = 1e-4
"""Where HF's two best logits are closer, another token is not an error."""
NUM_TOKENS = 20
SHARED = dict(max_position_embeddings=128, initializer_range=0.25, eos_token_id=None)
CONFIGS: dict[str, Any] = {
    "qwen3-8h-2kv-tied": Qwen3Config(
        **SHARED, vocab_size=509, hidden_size=48, intermediate_size=96, num_hidden_layers=5,
        num_attention_heads=8, num_key_value_heads=2, head_dim=12, tie_word_embeddings=True,
    ),
    "qwen3-4h-1kv": Qwen3Config(
        **SHARED, vocab_size=1003, hidden_size=40, intermediate_size=52, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=1, head_dim=16, tie_word_embeddings=False,
    ),
    "llama-4h-4kv-biases": LlamaConfig(
        **SHARED, vocab_size=777, hidden_size=32, intermediate_size=44, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, attention_bias=True, mlp_bias=True,
        tie_word_embeddings=False,
    ),
    "qwen2-6h-3kv": Qwen2Config(
        **SHARED, vocab_size=131, hidden_size=48, intermediate_size=66, num_hidden_layers=5,
        num_attention_heads=6, num_key_value_heads=3, tie_word_embeddings=True,
    ),
}  # fmt: skip
SIZES = {
    "qwen3-8h-2kv-tied": [(1, 2), (2, 1), (2, 2), (4, 1)],
    "qwen3-4h-1kv": [(1, 2), (2, 1), (4, 1)],
    "llama-4h-4kv-biases": [(2, 1), (2, 2), (4, 1)],
    "qwen2-6h-3kv": [(1, 3), (3, 1), (3, 2)],
}
CASES = [(name, *sizes) for name, all_sizes in SIZES.items() for sizes in all_sizes]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """For each model its folder, and what HF makes of each prompt, with the gaps of its choices."""
    torch.set_num_threads(1)
    return {name: ask_hf(config, tmp_path_factory.mktemp(name)) for name, config in CONFIGS.items()}


def ask_hf(config: Any, folder: Path) -> tuple[str, list[list[int]], list[Any]]:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.data.normal_(0, 0.25)
    model.save_pretrained(folder)
    draw = random.Random(7)
    prompts = [[draw.randrange(config.vocab_size) for _ in range(n)] for n in (1, 5, 19, 33)]
    prompts.append(prompts[-1][:16] + [3, 4])
    return str(folder), prompts, [greedy(model, prompt) for prompt in prompts]


@torch.inference_mode()
def greedy(model: Any, prompt: list[int]) -> list[tuple[int, float]]:
    result, tokens = [], list(prompt)
    for _ in range(NUM_TOKENS):
        best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
        tokens.append(int(best.indices[0]))
        result.append((tokens[-1], float(best.values[0] - best.values[1])))
    return result


def compare(llm: LLM, prompts: list[list[int]], expected: list[Any]) -> None:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    for output, wanted in zip(outputs, expected, strict=True):
        for token, (best, gap) in zip(output.outputs[0].token_ids, wanted, strict=True):
            if token != best:
                assert gap < GAP, (output.prompt_token_ids, gap)
                break


OPTIONS: dict[str, Any] = dict(
    skip_tokenizer_init=True,
    dtype="float32",
    max_model_len=64,
    block_size=4,
    num_gpu_blocks=24,
    max_num_batched_tokens=9,
)


@pytest.mark.parametrize(("name", "tp", "pp"), CASES)
def test_the_tokens_are_those_of_hugging_face(
    name: str, tp: int, pp: int, answers: dict[str, Any]
) -> None:
    folder, prompts, expected = answers[name]
    llm = LLM(folder, tensor_parallel_size=tp, pipeline_parallel_size=pp, **OPTIONS)
    try:
        compare(llm, prompts, expected)
        layers = CONFIGS[name].num_hidden_layers
        shapes = llm.collective_rpc(cache_shapes)
        assert sum(len(own) for own in shapes) == layers * tp
        heads = max(1, CONFIGS[name].num_key_value_heads // tp)
        assert {shape[3] for own in shapes for shape in own} == {heads}
        llm.engine.core.scheduler.check_integrity()
    finally:
        llm.shutdown()


def cache_shapes(worker: Any) -> list[tuple[int, ...]]:
    return [tuple(layer.shape) for layer in worker.model_runner.kv_cache.layers]


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
def test_the_same_over_ray(tp: int, pp: int, answers: dict[str, Any]) -> None:
    pytest.importorskip("ray")
    folder, prompts, expected = answers["qwen3-8h-2kv-tied"]
    llm = LLM(
        folder,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        distributed_executor_backend="ray",
        **OPTIONS,
    )
    try:
        compare(llm, prompts, expected)
        assert llm.collective_rpc("check_health") == [None, None]
    finally:
        llm.shutdown()


@pytest.mark.parametrize(("tp", "pp", "rank"), [(2, 1, 0), (1, 2, 1)])
def test_a_ray_worker_that_is_killed_ends_the_engine_and_is_named(
    tp: int, pp: int, rank: int, answers: dict[str, Any]
) -> None:
    pytest.importorskip("ray")
    folder, prompts, _ = answers["qwen3-8h-2kv-tied"]
    llm = LLM(
        folder,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        distributed_executor_backend="ray",
        **OPTIONS,
    )
    pids = llm.collective_rpc("pid")
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    threading.Timer(0.5, os.kill, (pids[rank], signal.SIGKILL)).start()
    start = time.monotonic()
    with pytest.raises(EngineDeadError, match=rf"worker {rank} \(pid {pids[rank]}\) has died: "):
        while time.monotonic() < start + 30:
            llm.generate(prompts, params, use_tqdm=False)
    assert time.monotonic() - start < 10.5
    llm.shutdown()
    gone = [Path(f"/proc/{pid}") for pid in pids]
    eventually(lambda: not any(process.exists() for process in gone), "a worker lives on")


@pytest.mark.parametrize("pp", [1, 2])
def test_a_ray_worker_that_hangs_is_named(pp: int, answers: dict[str, Any]) -> None:
    """The last stage is stopped, also one that no exchange waits for."""
    pytest.importorskip("ray")
    folder, prompts, _ = answers["qwen3-8h-2kv-tied"]
    llm = LLM(
        folder,
        pipeline_parallel_size=pp,
        distributed_executor_backend="ray",
        distributed_timeout_seconds=10,
        **OPTIONS,
    )
    pids = llm.collective_rpc("pid")
    os.kill(pids[-1], signal.SIGSTOP)
    try:
        with pytest.raises(EngineDeadError, match=rf"worker {pp - 1} \(pid {pids[-1]}\)"):
            llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    finally:
        llm.shutdown()
    gone = [Path(f"/proc/{pid}") for pid in pids]
    eventually(lambda: not any(process.exists() for process in gone), "a worker lives on")


@pytest.mark.parametrize("again", range(5))
def test_two_engines_that_start_at_once_do_not_meet(again: int) -> None:
    """Each has a port that the system gave it, and no other process could take it in between."""
    engines: list[LLM] = []

    def start() -> None:
        engines.append(
            LLM("storyteller", tensor_parallel_size=2, num_gpu_blocks=64, max_model_len=64)
        )

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(engines) == 2
    params = SamplingParams(temperature=0, max_tokens=4)
    texts = [llm.generate(["Once"], params, use_tqdm=False)[0].outputs[0].text for llm in engines]
    assert texts[0] == texts[1]
    for llm in engines:
        llm.shutdown()


def test_a_worker_that_hangs_is_named() -> None:
    """Stopped, not dead: the others' exchange runs into its time limit."""
    llm = LLM(
        "storyteller",
        tensor_parallel_size=2,
        distributed_timeout_seconds=10,
        num_gpu_blocks=64,
        max_model_len=64,
    )
    pids = llm.collective_rpc("pid")
    os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(EngineDeadError, match=rf"worker 1 \(pid {pids[1]}\)"):
        llm.generate(["Once"], SamplingParams(max_tokens=4), use_tqdm=False)
    llm.shutdown()


@pytest.mark.parametrize("words", [("--tensor-parallel-size", "2"), ("--data-parallel-size", "2")])
def test_an_idle_server_notices_a_dead_worker(words: tuple[str, str]) -> None:
    """/health shows it before a client gets an error."""
    server = Server(*words)
    try:
        server.wait()
        family = children(server.process.pid)
        os.kill(family[-1], signal.SIGKILL)
        eventually(lambda: not is_healthy(server), "the server is healthy", seconds=10)
        left = [pid for pid in family if Path(f"/proc/{pid}").exists()]
        assert len(left) < len(family)
    finally:
        server.process.terminate()
        server.process.wait(PATIENCE)


def is_healthy(server: Server) -> bool:
    try:
        return server.client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def children(pid: int) -> list[int]:
    """Processes started by this one that run our code, and those started by them."""
    started = psutil.Process(pid).children(recursive=True)
    return [child.pid for child in started if any("spawn_main" in word for word in child.cmdline())]
