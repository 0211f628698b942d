"""The end-to-end workload of `gpu-report`: nano-vLLM's, on a model of Qwen3-0.6B's shape.

256 prompts of 100 to 1,024 random tokens, 100 to 1,024 new tokens each, temperature 0.6, seed 0:
142,827 tokens in and 133,966 out. Each engine runs in a process of its own:

    python -m labkit.end_to_end mini_vllm      prints one JSON object
    python -m labkit.end_to_end hf

Imports torch, transformers and the engine only when it runs.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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


def nano_vllm(num_prompts: int = 256, longest: int = 1024) -> Workload:
    """The workload of nano-vLLM's bench.py, drawn in the same order from the same seed."""
    draw = random.Random(0)
    prompts = [
        [draw.randint(0, 10_000) for _ in range(draw.randint(100, longest))]
        for _ in range(num_prompts)
    ]
    return Workload(prompts, [draw.randint(100, longest) for _ in range(num_prompts)])


def num_weights() -> int:
    """Weights that each decode step reads; the embedding counts once, as the output's matrix."""
    s = SHAPE
    q, kv = s["num_attention_heads"] * s["head_dim"], s["num_key_value_heads"] * s["head_dim"]
    layer = s["hidden_size"] * (2 * q + 2 * kv) + 3 * s["hidden_size"] * s["intermediate_size"]
    return s["num_hidden_layers"] * layer + s["hidden_size"] * s["vocab_size"]


def least_decode_bytes(workload: Workload) -> int:
    """Bytes that decoding must read in bfloat16, if all requests run from the first step to their
    last: the weights once a step, and at each new token the keys and values before it.

    The first token of a request comes out of its prefill.
    """
    steps = max(workload.output_lens) - 1
    layers, heads, dim = (
        SHAPE[name] for name in ("num_hidden_layers", "num_key_value_heads", "head_dim")
    )
    contexts = sum(
        (count - 1) * len(prompt) + count * (count - 1) // 2
        for prompt, count in zip(workload.prompts, workload.output_lens, strict=True)
    )
    return 2 * num_weights() * steps + contexts * 2 * layers * heads * dim * 2


def prefill_flops(workload: Workload) -> int:
    """FLOPs of all prompts: two a weight and token, and attention over what lies before each."""
    layers, heads, dim = (
        SHAPE[name] for name in ("num_hidden_layers", "num_attention_heads", "head_dim")
    )
    matrices = num_weights() - SHAPE["hidden_size"] * SHAPE["vocab_size"]
    pairs = sum(len(prompt) * (len(prompt) + 1) // 2 for prompt in workload.prompts)
    return 2 * matrices * workload.input_tokens + 4 * layers * heads * dim * pairs


def shares(
    workload: Workload, seconds: float, prefill_seconds: float, ceilings: dict[str, float]
) -> dict[str, float]:
    """How a run compares with what the GPU could do at most, with the rates measured on it."""
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


def run_mini_vllm(workload: Workload, folder: Path) -> dict[str, Any]:
    """Our engine: once with one new token a request, which is the prefill, then in full."""
    from mini_vllm import LLM, SamplingParams

    begin = time.perf_counter()
    llm = LLM(
        folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16",
        max_model_len=2048, max_num_seqs=len(workload.prompts), max_num_batched_tokens=16384,
        enable_prefix_caching=False,
    )  # fmt: skip
    start_seconds = time.perf_counter() - begin

    def run(lens: Sequence[int]) -> tuple[float, int]:
        params = [
            SamplingParams(temperature=TEMPERATURE, max_tokens=n, ignore_eos=True) for n in lens
        ]
        begin = time.perf_counter()
        outputs = llm.generate(workload.prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        return seconds, sum(len(output.outputs[0].token_ids) for output in outputs)

    run([1] * len(workload.prompts))  # what is compiled at first use is compiled now
    prefill_seconds, _ = run([1] * len(workload.prompts))
    seconds, tokens = run(workload.output_lens)
    return {
        "start_seconds": start_seconds, "prefill_seconds": prefill_seconds, "seconds": seconds,
        "output_tokens": tokens,
    }  # fmt: skip


def run_hf(workload: Workload, folder: Path) -> dict[str, Any]:
    """transformers' `generate`, longest answers first, in batches of 64 that end together.

    A batch runs until its longest answer is done; only tokens that were asked for count.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    cuda = "cuda" if torch.cuda.is_available() else "cpu"
    begin = time.perf_counter()
    with torch.device(cuda):
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    start_seconds = time.perf_counter() - begin
    order = sorted(range(len(workload.prompts)), key=lambda i: -workload.output_lens[i])
    batches = [order[i : i + HF_BATCH] for i in range(0, len(order), HF_BATCH)]
    tokens = 0
    begin = time.perf_counter()
    for batch in batches:
        width = max(len(workload.prompts[i]) for i in batch)
        ids, mask = (torch.zeros(len(batch), width, dtype=torch.long) for _ in range(2))
        for row, i in enumerate(batch):  # on the left, so that answers begin together
            ids[row, width - len(workload.prompts[i]) :] = torch.tensor(workload.prompts[i])
            mask[row, width - len(workload.prompts[i]) :] = 1
        longest = max(workload.output_lens[i] for i in batch)
        with torch.inference_mode():
            out = model.generate(
                ids.to(cuda), attention_mask=mask.to(cuda), min_new_tokens=longest,
                max_new_tokens=longest, do_sample=True, temperature=TEMPERATURE, top_k=0,
                pad_token_id=0,
            )  # fmt: skip
        assert out.shape[1] == width + longest
        tokens += sum(workload.output_lens[i] for i in batch)
    if cuda == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    return {"start_seconds": start_seconds, "seconds": seconds, "output_tokens": tokens}


ENGINES: dict[str, Callable[[Workload, Path], dict[str, Any]]] = {
    "mini_vllm": run_mini_vllm,
    "hf": run_hf,
}


def main(words: list[str]) -> int:
    workload = nano_vllm()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), SHAPE)
        print(json.dumps(ENGINES[words[0]](workload, Path(folder))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
