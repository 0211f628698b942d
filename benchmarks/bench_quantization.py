"""Decode steps of one model in bfloat16, int8 and int4, in turns in one process.

Random weights of Qwen3-0.6B's shape, requests of 64 tokens of context. int8 rounds the head, too;
int4 leaves it in bfloat16, as published checkpoints do. `make bench` measures whole requests.
The best round of each counts: on a shared machine the best is what the code can do.

    python -m benchmarks.bench_quantization                     1 and 16 requests
    python -m benchmarks.bench_quantization --requests 1 4 16 64 --threads 2
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from labkit.gpu.workload import SHAPE, write_model
from mini_vllm.attention import AttentionMetadata
from mini_vllm.model.build import load_model
from mini_vllm.model.layers import Linear
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.quantization.oneshot.writer import PRESETS

CONTEXT = 64
BLOCK = 16
FORMATS: dict[str, str | None] = {"bfloat16": None, "int8": "int8", "int4 g128": "W4A16"}


def build(folder: Path, name: str) -> LlamaForCausalLM:
    """The shape with random weights, held in one way."""
    wanted = FORMATS[name]
    write_model(folder, SHAPE)
    if wanted in PRESETS:
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = PRESETS[wanted].config(["lm_head"], act_order=False)
        (folder / "config.json").write_text(json.dumps(config))
        wanted = None
    quant = get_quantization_config(folder, wanted)
    return load_model(folder, "bfloat16", load_format="dummy", quant=quant)


def weight_bytes(model: LlamaForCausalLM) -> int:
    """Bytes of all weights, in whatever form; what layers share counts once."""
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    held = [value for linear in linears for value in vars(linear).values()]
    held += list(model.parameters())
    sizes = {}
    for tensor in held:
        if isinstance(tensor, torch.Tensor):
            plain = tensor.to_dense() if tensor.layout is torch._mkldnn else tensor  # type: ignore[attr-defined]
            sizes[id(tensor)] = plain.nbytes
    return sum(sizes.values())


@torch.inference_mode()
def decode_step(model: LlamaForCausalLM, num_requests: int) -> float:
    """Seconds of one step: a token for each request."""
    spec, pages = model.kv_cache_spec(), CONTEXT // BLOCK
    shape = (2, 1 + pages * num_requests, BLOCK, spec.num_kv_heads, spec.width)
    caches = [torch.zeros(shape, dtype=spec.dtype) for _ in range(spec.num_layers)]
    tables = [[1 + pages * i + page for page in range(pages)] for i in range(num_requests)]
    metadata = AttentionMetadata.from_lists(
        [1] * num_requests, [CONTEXT] * num_requests, tables, BLOCK
    )
    tokens = torch.arange(num_requests)
    positions = torch.full((num_requests,), CONTEXT - 1)
    begin = time.perf_counter()
    model.compute_logits(model(tokens, positions, caches, metadata))
    return time.perf_counter() - begin


def measure(requests: Sequence[int], rounds: int) -> list[str]:
    """A line for each format and number of requests."""
    models, lines = {}, []
    for name in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            models[name] = build(Path(folder), name)
        lines.append(f"{name:10} {weight_bytes(models[name]) / 2**20:7.0f} MiB of weights")
    for number in requests:
        best = dict.fromkeys(models, float("inf"))
        for _ in range(rounds):
            for name, model in models.items():
                best[name] = min(best[name], decode_step(model, number))
        for name, seconds in best.items():
            ratio = best["bfloat16"] / seconds
            lines.append(f"{number:3} requests  {name:10} {seconds * 1e3:7.1f} ms  {ratio:.2f}x")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("\n".join(measure(args.requests, args.rounds)))


if __name__ == "__main__":
    main()
