"""What adapters cost: decoding at Qwen3-0.6B's shape, by CPU time, and what a swap takes.

Random weights and random adapters of rank 16 on every projection. Two engines in one process take
turns: one without adapters, one with slots for eight. On the second the same requests run with the
base alone, with one adapter, and with eight. CPU time of the process counts, and of several rounds
the best: on a shared machine wall time says what the neighbours did.

    python -m benchmarks.bench_lora                     16 requests, bfloat16, one thread
    python -m benchmarks.bench_lora --requests 8 32 --rounds 5 --save
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from labkit.course.files import write_text
from labkit.course.root import ROOT
from labkit.gpu.workload import SHAPE, write_model
from mini_vllm import LLM, SamplingParams
from mini_vllm.lora.request import LoRARequest

RANK, ADAPTERS, CONTEXT = 16, 8, 16
Wish = list[LoRARequest | None]


def projections() -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each projection of a layer."""
    hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    q, kv = (SHAPE[f"num_{kind}_heads"] * SHAPE["head_dim"] for kind in ("attention", "key_value"))
    return {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }


def write_adapter(folder: Path, seed: int) -> str:
    """An adapter's folder as PEFT writes it; returns its path."""
    folder.mkdir()
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(SHAPE["num_hidden_layers"]):
        for name, (outputs, inputs) in projections().items():
            module = f"base_model.model.model.layers.{layer}.{name}"
            for part, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
                values = torch.randn(shape, generator=draw) * 0.01
                tensors[f"{module}.lora_{part}.weight"] = values.bfloat16()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


def make_engine(folder: Path, dtype: str, num_seqs: int, **lora: Any) -> LLM:
    return LLM(
        folder,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype=dtype,
        max_model_len=64,
        max_num_seqs=num_seqs,
        enable_prefix_caching=False,
        num_gpu_blocks=num_seqs * 4,
        **lora,
    )


def decode_seconds(llm: LLM, wish: Wish, num_tokens: int) -> float:
    """CPU seconds of a decode step: the median of all that follow the prompts' own step."""
    engine, seconds = llm.llm_engine, []
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    for index, adapter in enumerate(wish):
        prompt = {"prompt_token_ids": [7 + index] * CONTEXT}
        engine.add_request(str(index), prompt, params, lora_request=adapter)
    while engine.has_unfinished_requests():
        begin = time.process_time()
        engine.step()
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds[1:])


def swap_seconds(llm: LLM, path: str) -> dict[str, float]:
    """Milliseconds: an adapter from disk into host memory, and from there into a slot."""
    manager = llm.llm_engine.core.executor.worker.lora
    key = manager.slots[0]
    begin = time.perf_counter()
    manager._load(f"{key.partition('@')[0]}", path)
    loaded = time.perf_counter()
    manager._release(0)
    manager.activate(key, needed=())
    return {
        "load_ms": (loaded - begin) * 1e3,
        "activate_ms": (time.perf_counter() - loaded) * 1e3,
    }


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, SHAPE)
        paths = [write_adapter(folder / f"adapter-{i}", i) for i in range(ADAPTERS)]
        adapters = [LoRARequest(f"adapter-{i}", i + 1, path) for i, path in enumerate(paths)]
        most = max(options.requests)
        plain = make_engine(folder, options.dtype, most)
        lora = make_engine(
            folder, options.dtype, most, enable_lora=True, max_loras=ADAPTERS, max_lora_rank=RANK
        )
        for number in options.requests:
            ways: dict[str, tuple[LLM, Wish]] = {
                "off": (plain, [None] * number),
                "base": (lora, [None] * number),
                "one": (lora, [adapters[0]] * number),
                "eight": (lora, [adapters[i % ADAPTERS] for i in range(number)]),
            }
            results.append(compare(number, ways, options))
        results[0] |= swap_seconds(lora, paths[0])
    return results


def compare(
    number: int, ways: dict[str, tuple[LLM, Wish]], options: argparse.Namespace
) -> dict[str, Any]:
    """Each way in turns; prints a line a way."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(options.rounds):
        for way, (llm, wish) in ways.items():
            best[way] = min(best[way], decode_seconds(llm, wish, options.tokens))
    row: dict[str, Any] = {"requests": number}
    for way, seconds in best.items():
        ratio = best["off"] / seconds
        row |= {f"{way}_ms": seconds * 1e3, way: ratio}
        print(
            f"{number:3} requests  {way:6} {seconds * 1e3:7.1f} ms a step  {ratio:.2f}", flush=True
        )
    return row


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("bench_lora", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--requests", type=int, nargs="+", default=[16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", action="store_true", help="write results/lora.json")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    results = measure(options)
    swap = results[0]
    print(
        f"an adapter: {swap['load_ms']:.0f} ms from disk, {swap['activate_ms']:.0f} ms into a slot"
    )
    if options.save:
        facts = {"cpu": platform.machine(), "threads": options.threads, "torch": torch.__version__}
        facts |= {"dtype": options.dtype, "rank": RANK, "adapters": ADAPTERS}
        path = ROOT / "benchmarks" / "results" / "lora.json"
        write_text(path, json.dumps(facts | {"results": results}, indent=1) + "\n")
        print(f"saved to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
