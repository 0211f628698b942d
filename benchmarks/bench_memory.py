"""What one layer keeps of a text, by length, if it remembers everything, a window, or a state.

A request alone grows token by token under the real scheduler, and the blocks that it holds are
counted; bytes are those of the worker's layout. Then requests fill one pool, and those that run
side by side are counted. No model runs.

    python -m benchmarks.bench_memory
    python -m benchmarks.bench_memory --lengths 100 1000 10000 --save
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch

from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm.config import CacheConfig, EngineConfig, SchedulerConfig
from mini_vllm.core.finish_step import finish_step
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import ModelRunnerOutput
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.model.interface import FULL, KVCacheSpec, LayerSpec, StateTensor
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.worker.cache_layout import CacheLayout

BLOCK_SIZE, BUDGET, WINDOW = 16, 2048, 1024
BF16 = torch.bfloat16
DELTA_RULE = (
    StateTensor((32, 128, 128), torch.float32),  # a layer of Qwen3-Next: 32 matrices
    StateTensor((3, 8192), BF16),  # and the last inputs of its convolution
)
LAYERS = {
    "full": KVCacheSpec(1, 8, 128, BF16, layers=(FULL,)),
    "window": KVCacheSpec(1, 8, 128, BF16, layers=(LayerSpec("sliding_window", WINDOW),)),
    "state": KVCacheSpec(1, 1, 1, BF16, planes=1, layers=(LayerSpec("mamba", states=DELTA_RULE),)),
    "latent": KVCacheSpec(1, 1, 576, BF16, planes=1, layers=(FULL,)),
}
"""A layer of 8 KV heads of 128; the same with a window; Gated DeltaNet; DeepSeek's latents."""
PATTERNS = {"Gemma 3, 5 windows to 1": "wwwwwF" * 4 + "ww", "Mistral, windows only": "w" * 32}
"""Layers of models, w: a window, F: the whole text."""


def main(argv: Sequence[str]) -> int:
    """Measure and print; see the module's docstring."""
    parser = argparse.ArgumentParser("bench_memory", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 256, 1024, 4096, 16384])
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/memory.json")
    options = parser.parse_args(argv)
    results = measure(sorted(options.lengths))
    print(table(results))
    if options.save:
        path = ROOT / "benchmarks" / "results" / "memory.json"
        write_text(path, json.dumps(results, indent=1) + "\n")
    return 0


def measure(lengths: Sequence[int]) -> dict[str, Any]:
    """KiB of one layer by kind and length, and requests that run side by side by model."""
    kept = {name: kib_by_length(spec, lengths) for name, spec in LAYERS.items()}
    side_by_side = {name: requests_that_fit(kinds) for name, kinds in PATTERNS.items()}
    return {"lengths": list(lengths), "kib": kept, "requests": side_by_side}


def layout_of(spec: KVCacheSpec, max_model_len: int) -> CacheLayout:
    limits = SchedulerConfig(max_num_batched_tokens=BUDGET, max_model_len=max_model_len)
    parts = SimpleNamespace(scheduler=limits, cache=CacheConfig(block_size=BLOCK_SIZE))
    return CacheLayout.of(spec, cast(EngineConfig, parts))


def scheduler_of(layout: CacheLayout, num_blocks: int, max_model_len: int) -> Scheduler:
    return make_scheduler(
        SchedulerConfig(max_num_batched_tokens=BUDGET, max_model_len=max_model_len),
        CacheConfig(block_size=layout.block_size, num_gpu_blocks=num_blocks),
        groups=layout.groups,
    )


def step(scheduler: Scheduler) -> None:
    """One step, with a token for each request that has computed all it has."""
    plan = scheduler.schedule()
    requests = [scheduler.requests[name] for name in plan.num_scheduled_tokens]
    due = [r.request_id for r in requests if r.num_computed_tokens == r.num_tokens]
    finish_step(scheduler, plan, ModelRunnerOutput({name: [7] for name in due}))


def kib_by_length(spec: KVCacheSpec, lengths: Sequence[int]) -> list[float]:
    """KiB of the blocks that a lone request of one token of prompt holds with so many computed."""
    most = max(lengths) + 2
    layout = layout_of(spec, most)
    scheduler = scheduler_of(layout, 2 + most // layout.block_size + 1, most)
    params = SamplingParams(max_tokens=most, ignore_eos=True)
    request = Request("0", [7], params)
    scheduler.add_request(request)
    pool, found = scheduler.kv_cache_manager.block_pool, []
    for length in lengths:
        while request.num_computed_tokens < length:
            step(scheduler)
        found.append((pool.num_usable_blocks - pool.num_free_blocks) * layout.block_bytes / 1024)
    return found


def requests_that_fit(kinds: str, num_whole: int = 2, window: int = 256) -> dict[str, int]:
    """Texts of 32 windows that run side by side in the memory of ``num_whole`` that keep all."""
    length = 32 * window
    specs = {"w": LayerSpec("sliding_window", window), "F": FULL}
    layers = tuple(specs[kind] for kind in kinds)
    found = {}
    for name, own in (("whole text", (FULL,) * len(kinds)), ("windows", layers)):
        layout = layout_of(KVCacheSpec(len(kinds), 8, 128, BF16, layers=own), length)
        pages = num_whole * len(kinds) * (length // BLOCK_SIZE)
        found[name] = most_running(layout, 1 + pages // layout.num_positions, length)
    return found


def most_running(layout: CacheLayout, num_blocks: int, length: int) -> int:
    """Requests of ``length`` tokens that are computed at the same time: they come one by one, until
    one has to wait, or another has to go."""
    scheduler = scheduler_of(layout, num_blocks, length)
    params = SamplingParams(max_tokens=length, ignore_eos=True)
    num_prompt = length - length // 16
    for most in range(length // 16):
        scheduler.add_request(Request(str(most), [most] * num_prompt, params))
        for _ in range(2 + num_prompt // BUDGET):
            step(scheduler)
        if scheduler.waiting:
            return most
    raise RuntimeError("no request has to wait; take a smaller pool")


def table(results: dict[str, Any]) -> str:
    lines = [f"KiB of one layer, blocks of {BLOCK_SIZE} tokens, window of {WINDOW}", ""]
    lines.append("tokens   " + "".join(f"{name:>12}" for name in results["kib"]))
    for index, length in enumerate(results["lengths"]):
        row = (f"{kib[index]:>12,.0f}" for kib in results["kib"].values())
        lines.append(f"{length:>6,}   " + "".join(row))
    lines += ["", "requests of 32 windows side by side in one pool", ""]
    for name, counts in results["requests"].items():
        lines.append(f"{name:24}" + ", ".join(f"{kind} {n}" for kind, n in counts.items()))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
