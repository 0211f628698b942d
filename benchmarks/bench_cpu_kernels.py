"""What `cpu.cpp` gains over PyTorch's operations, function by function, in turns in one process.

    python -m benchmarks.bench_cpu_kernels                 shapes of a tiny model and of Qwen3-0.6B
                                                           in bfloat16, a layer in float32,
                                                           wide products and prompts in both
    python -m benchmarks.bench_cpu_kernels --threads 2

Each figure is the shortest of many turns, in microseconds: neighbours come and go.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mini_vllm import hub
from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.cpu import CpuAttention
from mini_vllm.kernels import native
from mini_vllm.model import layers, rope
from mini_vllm.model.build import load_model

SHAPES = {
    "tiny, 16": dict(tokens=16, context=160, heads=4, kv_heads=2, size=32, hidden=128, mlp=384),
    "tiny, 256": dict(tokens=256, context=96, heads=4, kv_heads=2, size=32, hidden=128, mlp=384),
    "0.6B, 16": dict(tokens=16, context=160, heads=16, kv_heads=8, size=128, hidden=1024, mlp=3072),
}
BLOCK_SIZE = 16
SECONDS = 0.5
Action = Callable[[], Any]


def actions(
    tokens: int, context: int, heads: int, kv_heads: int, size: int, hidden: int, mlp: int
) -> dict[str, Action]:
    """One call of each function, as a decode step of so many requests makes it."""
    make = partial(torch.randn, dtype=torch.bfloat16)
    width = -(-context // BLOCK_SIZE)
    tables = [[1 + row * width + page for page in range(width)] for row in range(tokens)]
    cache = make(2, 1 + tokens * width, BLOCK_SIZE, kv_heads, size)
    x, residual, weight = make(tokens, hidden), make(tokens, hidden), make(hidden)
    query, key, gate_up = (
        make(tokens, heads, size),
        make(tokens, kv_heads, size),
        make(tokens, 2 * mlp),
    )
    cos, sin = make(tokens, 1, size), make(tokens, 1, size)
    metadata = AttentionMetadata.from_lists([1] * tokens, [context] * tokens, tables, BLOCK_SIZE)
    backend = CpuAttention()
    return {
        "norm of a sum": lambda: layers.add_rms_norm(x, residual, weight, 1e-6),
        "rope": lambda: rope.apply_rope(query, cos, sin),
        "silu and product": lambda: layers.silu_mul(gate_up),
        "cache store": lambda: backend.store(key, key, cache, metadata.slot_mapping),
        "attention": lambda: backend.forward(query, cache, metadata, size**-0.5),
    }


def prompt_actions(tokens: int, dtype: torch.dtype) -> dict[str, Action]:
    """Attention of a prompt of 0.6B."""
    width = -(-tokens // BLOCK_SIZE)
    cache = torch.randn(2, 1 + width, BLOCK_SIZE, 8, 128).to(dtype)
    query = torch.randn(tokens, 16, 128).to(dtype)
    tables = [list(range(1, 1 + width))]
    metadata = AttentionMetadata.from_lists([tokens], [tokens], tables, BLOCK_SIZE)
    backend = CpuAttention()
    return {"attention": lambda: backend.forward(query, cache, metadata, 128**-0.5)}


def layer_actions(tokens: int) -> dict[str, Action]:
    """A layer of the storyteller, and its head, for so many tokens of one request in float32."""
    model = load_model(hub.folder("storyteller"), dtype="float32")
    layer, hidden = model.model.layers[0], torch.randn(tokens, model.config.hidden_size)
    cache = torch.randn(2, 12, BLOCK_SIZE, model.config.num_key_value_heads, model.config.head_dim)
    metadata = AttentionMetadata.from_lists([tokens], [160], [list(range(1, 11))], BLOCK_SIZE)
    turns = model.model.rotary(torch.arange(160 - tokens, 160), torch.float32)
    return {
        "layer": lambda: layer(hidden, hidden.clone(), turns, cache, metadata),
        "head": lambda: model.compute_logits(hidden),
    }


def product_actions(tokens: int, dtype: torch.dtype) -> dict[str, Action]:
    """Products with weights of 0.6B's size, more of them than the caches hold."""
    linears = [layers.Linear(1024, [6144], bias=False) for _ in range(8)]
    for linear in linears:
        linear.weight.data = torch.randn(6144, 1024).to(dtype)
        linear.process_weights_after_loading()
    x = torch.randn(tokens, 1024, dtype=layers.compute_dtype(dtype, "cpu"))
    return {"8 products": lambda: [linear(x) for linear in linears]}


def best_us(action: Action) -> float:
    """The shortest of as many turns as fit into `SECONDS`."""
    action()
    best, end = float("inf"), time.perf_counter() + SECONDS
    while (start := time.perf_counter()) < end:
        action()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    built = native.library()
    if built is None:
        raise SystemExit("cpu.cpp is not built here: there is no compiler, or MINI_VLLM_NATIVE=0")
    scenes = {shape: partial(actions, **sizes) for shape, sizes in SHAPES.items()}
    scenes |= {f"storyteller, {n}": partial(layer_actions, n) for n in (1, 4, 16)}
    for make_scene, what, sizes in (
        (product_actions, "0.6B, {}, {}", (1, 16, 64)),
        (prompt_actions, "0.6B, prompt of {}, {}", (128, 1024)),
    ):
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
            scenes |= {what.format(n, name): partial(make_scene, n, dtype) for n in sizes}
    print(f"{'us':<42}{'PyTorch':>10}{'cpu.cpp':>10}{'gain':>8}")
    with torch.inference_mode():
        for shape, make in scenes.items():
            best: dict[str, dict[bool, float]] = {}
            for on in (False, True):
                native.library = lambda on=on: built if on else None  # type: ignore[assignment]
                for name, action in make().items():
                    best.setdefault(name, {})[on] = best_us(action)
            for name, us in best.items():
                gain = us[False] / us[True]
                print(f"{shape + ': ' + name:<42}{us[False]:>10.1f}{us[True]:>10.1f}{gain:>7.1f}x")


if __name__ == "__main__":
    main()
