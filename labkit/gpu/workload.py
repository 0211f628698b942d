"""The end-to-end workload of `gpu-report`: nano-vLLM's, on a model of Qwen3-0.6B's shape.

256 prompts of 100 to 1,024 random tokens, 100 to 1,024 new tokens each, temperature 0.6, seed 0:
142,827 tokens in and 133,966 out. Each engine runs in a process of its own, which `gpu-report`
starts; torch, transformers and the engine are imported only there.
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHAPE = {
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
}
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
TEMPERATURE = 0.6
HF_BATCH = 64


@dataclass(frozen=True)
class Workload:
    """Prompts as token ids, and how many tokens each request gets."""

    prompts: list[list[int]]
    output_lens: list[int]

    @property
    def input_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def output_tokens(self) -> int:
        return sum(self.output_lens)


def nano_vllm() -> Workload:
    """The workload of nano-vLLM's bench.py, drawn in the same order from the same seed."""
    draw = random.Random(0)
    prompts = [
        [draw.randint(0, 10_000) for _ in range(draw.randint(100, 1024))] for _ in range(256)
    ]
    return Workload(prompts, [draw.randint(100, 1024) for _ in range(256)])


def num_weights(shape: dict[str, int] = SHAPE) -> int:
    """Weights that each decode step reads; the embedding counts once, as the output's matrix."""
    q, kv = (
        shape[f"num_{heads}_heads"] * shape["head_dim"] for heads in ("attention", "key_value")
    )
    layer = shape["hidden_size"] * (2 * q + 2 * kv + 3 * shape["intermediate_size"])
    return shape["num_hidden_layers"] * layer + shape["hidden_size"] * shape["vocab_size"]


def least_decode_bytes(workload: Workload, shape: dict[str, int] = SHAPE) -> int:
    """Bytes that decoding must read in bfloat16, if all requests run from the first step to their
    last: the weights once a step, and at each new token the keys and values up to it.

    The first token of a request comes out of its prefill.
    """
    steps = max(workload.output_lens) - 1
    token = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]
    contexts = sum(
        (count - 1) * len(prompt) + count * (count - 1) // 2
        for prompt, count in zip(workload.prompts, workload.output_lens, strict=True)
    )
    return 2 * (num_weights(shape) * steps + token * contexts)


def prefill_flops(workload: Workload, shape: dict[str, int] = SHAPE) -> int:
    """FLOPs of all prompts: two a weight and token, and attention over what lies before each.

    Logits are needed for the last token of a prompt only, and left out.
    """
    matrices = num_weights(shape) - shape["hidden_size"] * shape["vocab_size"]
    pairs = sum(len(prompt) * (len(prompt) + 1) // 2 for prompt in workload.prompts)
    pair = 4 * shape["num_hidden_layers"] * shape["num_attention_heads"] * shape["head_dim"]
    return 2 * matrices * workload.input_tokens + pair * pairs


def shares(
    workload: Workload, seconds: float, prefill_seconds: float, ceilings: dict[str, float]
) -> dict[str, float]:
    """How a run compares with the least time that its bytes and FLOPs take on this GPU.

    Args:
        seconds: of the whole run.
        prefill_seconds: of a run with one new token a request, which is the prefill alone.
        ceilings: "bandwidth" in bytes and "flops" in FLOPs a second, as measured here.
    """
    decode_floor = least_decode_bytes(workload) / ceilings["bandwidth"]
    prefill_floor = prefill_flops(workload) / ceilings["flops"]
    return {
        "decode_floor_seconds": decode_floor,
        "prefill_floor_seconds": prefill_floor,
        "decode_share": decode_floor / max(seconds - prefill_seconds, 1e-9),
        "prefill_share": prefill_floor / max(prefill_seconds, 1e-9),
        "total_share": (decode_floor + prefill_floor) / seconds,
    }


# ---------------------------------------------------------------- engines
def write_model(folder: Path, shape: dict[str, int]) -> None:
    """A folder with a config and no weights: they will be random."""
    (folder / "config.json").write_text(json.dumps(CONFIG | shape))


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """The Triton kernels that are compiled inside the block: none, if all were before."""
    import triton

    runtime, found = triton.knobs.runtime, list[str]()
    before = runtime.jit_post_compile_hook

    def note(*args: Any, **kwargs: Any) -> Any:
        found.append(str(kwargs.get("repr", "a kernel")))
        return before(*args, **kwargs) if before is not None else None

    runtime.jit_post_compile_hook = note
    try:
        yield found
    finally:
        runtime.jit_post_compile_hook = before


def run_mini_vllm(workload: Workload, folder: Path, seconds: float) -> dict[str, Any]:
    """Our engine: once with one new token a request, which is the prefill, then in full.

    It does not look at `seconds`: the process that started it ends it.
    """
    from mini_vllm import LLM, SamplingParams

    begin = time.perf_counter()
    llm = LLM(
        folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16",
        max_model_len=2048, max_num_seqs=len(workload.prompts), max_num_batched_tokens=16384,
        enable_prefix_caching=False,
    )  # fmt: skip
    start_seconds = time.perf_counter() - begin

    def run(lens: Sequence[int]) -> float:
        params = [
            SamplingParams(temperature=TEMPERATURE, max_tokens=n, ignore_eos=True) for n in lens
        ]
        begin = time.perf_counter()
        outputs = llm.generate(workload.prompts, params, use_tqdm=False)
        elapsed = time.perf_counter() - begin
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        if tokens != sum(lens):
            raise RuntimeError(f"{tokens} output tokens instead of {sum(lens)}")
        return elapsed

    ones = [1] * len(workload.prompts)
    # What is compiled at first use is compiled now: prompts alone, and beside decodes that end.
    run([min(n, 2 + i % 7) for i, n in enumerate(workload.output_lens)])
    run(ones)
    with compilations() as compiled:
        result: dict[str, Any] = {
            "start_seconds": start_seconds, "prefill_seconds": run(ones),
            "seconds": run(workload.output_lens), "output_tokens": workload.output_tokens,
            "whole": True, "async_scheduling": llm.engine.core.config.scheduler.async_scheduling,
        }  # fmt: skip
    if compiled:
        result["wrong"] = f"compiled inside the timed run: {', '.join(sorted(set(compiled)))}"
    return result


def run_hf(workload: Workload, folder: Path, seconds: float) -> dict[str, Any]:
    """transformers' `generate`, longest answers first, in batches of 64 that end together.

    A batch runs until its longest answer is done; only tokens that were asked for count. After
    `seconds` it stops where it is: then the result is a sample, and "whole" is False.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    begin = time.perf_counter()
    with torch.device(device):
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    start_seconds = time.perf_counter() - begin
    order = sorted(range(len(workload.prompts)), key=lambda i: -workload.output_lens[i])
    tokens, begin = 0, time.perf_counter()
    for start in range(0, len(order), HF_BATCH):
        batch = order[start : start + HF_BATCH]
        left = seconds - (time.perf_counter() - begin)
        if left <= 0:
            break
        generated = _hf_batch(model, [workload.prompts[i] for i in batch],
                              max(workload.output_lens[i] for i in batch), left)  # fmt: skip
        tokens += sum(min(workload.output_lens[i], generated) for i in batch)
    return {
        "start_seconds": start_seconds, "seconds": time.perf_counter() - begin,
        "output_tokens": tokens, "whole": tokens == workload.output_tokens,
    }  # fmt: skip


def _hf_batch(model: Any, prompts: Sequence[Sequence[int]], count: int, seconds: float) -> int:
    """Up to `count` new tokens for each prompt; how many there were when the time was up."""
    import torch

    width = max(map(len, prompts))
    ids, mask = (torch.zeros(len(prompts), width, dtype=torch.long) for _ in range(2))
    for row, prompt in enumerate(prompts):  # padded on the left, so that answers begin together
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    with torch.inference_mode():
        out = model.generate(
            ids.to(model.device), attention_mask=mask.to(model.device), min_new_tokens=count,
            max_new_tokens=count, do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0,
            pad_token_id=0, max_time=seconds,
        )  # fmt: skip
    return int(out.cpu().shape[1]) - width  # the copy waits for the GPU


def run_hf_continuous(workload: Workload, folder: Path, seconds: float) -> dict[str, Any]:
    """transformers' continuous batching: requests come and go in one batch, over a paged cache.

    Its attention is the one it has without further packages, so each request's keys and values are
    gathered in each step. After `seconds` it stops where it is, and the result is a sample.
    """
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    device = "cuda" if torch.cuda.is_available() else "cpu"
    version = tuple(map(int, transformers.__version__.split(".")[:2]))
    begin = time.perf_counter()
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder), dtype=torch.bfloat16,
            attn_implementation="paged|sdpa" if version < (5, 18) else "sdpa",
        ).eval()  # fmt: skip
    longest = max(map(sum, zip(map(len, workload.prompts), workload.output_lens, strict=True)))
    generation = GenerationConfig(
        do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, max_new_tokens=longest
    )
    batching = ContinuousBatchingConfig(
        allow_block_sharing=False, max_requests_per_batch=len(workload.prompts)
    )
    if device == "cpu":  # a test, on a machine that has other work: not most of its free memory
        batching.max_memory_percent = 0.1
    tokens = 0
    with model.continuous_batching_context_manager(
        generation, continuous_batching_config=batching
    ) as manager:
        start_seconds = time.perf_counter() - begin
        begin = time.perf_counter()
        for index, (prompt, count) in enumerate(
            zip(workload.prompts, workload.output_lens, strict=True)
        ):
            manager.add_request(prompt, f"r{index}", max_new_tokens=count, eos_token_id=-1)
        left = len(workload.prompts)
        while left and time.perf_counter() - begin < seconds:
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                left, tokens = left - 1, tokens + len(result.generated_tokens)
        elapsed = time.perf_counter() - begin
    return {
        "start_seconds": start_seconds, "seconds": elapsed, "output_tokens": tokens,
        "whole": tokens == workload.output_tokens,
    }  # fmt: skip


ENGINES: dict[str, Callable[[Workload, Path, float], dict[str, Any]]] = {
    "mini_vllm": run_mini_vllm,
    "hf_continuous": run_hf_continuous,
    "hf": run_hf,
}


def measure(
    engine: str, seconds: float, workload: Workload | None = None, shape: dict[str, int] = SHAPE
) -> dict[str, Any]:
    """Run one engine in this process, on random weights: seconds and tokens."""
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name), shape)
        return ENGINES[engine](workload or nano_vllm(), Path(name), seconds)
