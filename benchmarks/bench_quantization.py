"""Decode steps of one model in bfloat16, int8 and int4, in turns in one process.

Random weights of Qwen3-0.6B's shape, requests of 64 tokens of context. int8 rounds the head, too;
int4 leaves it in bfloat16, as published checkpoints do. `make bench` measures whole requests.
The best round of each counts: on a shared machine the best is what the code can do.

    python -m benchmarks.bench_quantization                     1 and 16 requests
    python -m benchmarks.bench_quantization --requests 1 4 16 64 --threads 2
    python -m benchmarks.bench_quantization --threads 2 --save   kept, with the machine and its load

`--save` puts the figures into `results/quantization.json`; `labkit docs figures` writes the table
of docs/speed.md.

Last comes one product of many tokens, by packed numbers of 4 and 8 bits, and by floats that are
unpacked for it, and whether what the engine has measured on this machine (`kernels/unpacked.py`)
chooses the faster one at this shape, too. Without a file of it the engine measures now.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench_offline import cpu
from benchmarks.bench_scheduler import machine
from labkit.course.files import write_text
from labkit.course.root import ROOT
from labkit.gpu.workload import SHAPE, write_model
from mini_vllm.attention import AttentionMetadata
from mini_vllm.kernels import native, unpacked
from mini_vllm.model.build import load_model
from mini_vllm.model.layers import Linear
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.quantization import cpu_products
from mini_vllm.quantization.config import get_quantization_config
from mini_vllm.quantization.oneshot.writer import PRESETS

RESULTS = ROOT / "benchmarks" / "results" / "quantization.json"
CONTEXT = 64
BLOCK = 16
MANY = (64, *unpacked.TRIED, 2048)
"""Tokens of one product."""
NEAR = 1.1
"""Times of the faster product that the chosen one may take: so much noise there is."""
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
def decode_step(model: LlamaForCausalLM, num_requests: int) -> None:
    """A token for each request."""
    spec, pages = model.kv_cache_spec(), CONTEXT // BLOCK
    shape = (2, 1 + pages * num_requests, BLOCK, spec.num_kv_heads, spec.width)
    caches = [torch.zeros(shape, dtype=spec.dtype) for _ in range(spec.num_layers)]
    tables = [[1 + pages * i + page for page in range(pages)] for i in range(num_requests)]
    metadata = AttentionMetadata.from_lists(
        [1] * num_requests, [CONTEXT] * num_requests, tables, BLOCK
    )
    tokens = torch.arange(num_requests)
    positions = torch.full((num_requests,), CONTEXT - 1)
    model.compute_logits(model(tokens, positions, caches, metadata))


def measure(requests: Sequence[int], rounds: int) -> dict[str, Any]:
    """Weights in MiB by format; milliseconds of a step by requests and format."""
    models, weights = {}, {}
    for name in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            models[name] = build(Path(folder), name)
        weights[name] = weight_bytes(models[name]) / 2**20
    steps = {}
    for number in requests:
        runs = {name: partial(decode_step, model, number) for name, model in models.items()}
        steps[str(number)] = best_ms(runs, rounds)
    return {"weights_mib": weights, "steps_ms": steps}


def best_ms(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Milliseconds of each, the best of rounds in turns."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best[name], (time.perf_counter() - begin) * 1e3)
    return best


@torch.inference_mode()
def many_tokens(rounds: int) -> dict[str, Any]:
    """Milliseconds of the gate and up projections, by tokens and by how they multiply."""
    rows, columns = 2 * SHAPE["intermediate_size"], SHAPE["hidden_size"]
    layers = {}
    for name, dtype in (("int4", torch.int32), ("int8", torch.int8)):
        layer = Linear(1, 1, bias=False)
        low, high = (0, 16) if name == "int4" else (-127, 128)
        numbers = torch.randint(low, high, (rows, columns), dtype=dtype)
        scale = torch.full((rows, columns // 32), 0.01)
        if not cpu_products.hold_groups(layer, numbers, scale, None, 8 if name == "int4" else 0):
            return {}
        layers[name] = layer
    times: dict[str, Any] = {}
    dtype = torch.bfloat16 if native.multiplies_bf16() else torch.float32
    for tokens in MANY:
        x = torch.randn(tokens, columns, dtype=dtype)
        runs: dict[str, Callable[[], object]] = {}
        for name, layer in layers.items():
            assert layer.matrix is not None
            runs[name] = partial(native.multiply, x, layer.matrix)
            weight = layer.words, layer.scale, layer.shift, layer.middle
            runs[f"{name}, unpacked"] = partial(unpacked.multiply, x, *weight)
        times[str(tokens)] = best_ms(runs, rounds)
    return times


def choices(many: Mapping[str, Mapping[str, float]]) -> list[str]:
    """For each form, from how many tokens on the engine unpacks, and where that is not the faster
    product by these times."""
    kinds = {"int4": native.Matrix.GROUPS_OF_4_BITS, "int8": native.Matrix.GROUPS_OF_8_BITS}
    dtype = torch.bfloat16 if native.multiplies_bf16() else torch.float32
    found = []
    for name, kind in kinds.items():
        chosen = {tokens: unpacked.is_faster(kind, int(tokens), dtype) for tokens in many}
        first = next((tokens for tokens, is_chosen in chosen.items() if is_chosen), None)
        begin = "it never unpacks" if first is None else f"it unpacks from {first} tokens on"
        slower = []
        for tokens, is_chosen in chosen.items():
            ours, floats = many[tokens][name], many[tokens][f"{name}, unpacked"]
            ratio = (floats if is_chosen else ours) / min(ours, floats)
            slower += [f"{ratio:.2f} x at {tokens}"] if ratio > NEAR else []
        end = f"the other takes less time: {', '.join(slower)}" if slower else "the table agrees"
        found.append(f"{name}: {begin}; {end}.")
    return found


def lines(found: Mapping[str, Any]) -> list[str]:
    """What was measured, as a Markdown table for each question."""
    weights, many = found["weights_mib"], found["many_ms"]
    text = [f"| a step | {' | '.join(weights)} |", "|---|" + "---|" * len(weights)]
    text += [f"| weights, MiB | {' | '.join(f'{value:,.0f}' for value in weights.values())} |"]
    for number, steps in found["steps_ms"].items():
        ratios = (f"{ms:.1f} ({steps['bfloat16'] / ms:.2f} x)" for ms in steps.values())
        requests = "request" if number == "1" else "requests"
        text.append(f"| {number} {requests}, ms | {' | '.join(ratios)} |")
    if many:
        names = next(iter(many.values()))
        text += ["", f"| one product, ms | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
        for tokens, times in many.items():
            cells = " | ".join(f"{ms:.1f}" for ms in times.values())
            text.append(f"| {int(tokens):,} tokens | {cells} |")
        text += ["", *choices(many)]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", action="store_true", help=f"into {RESULTS.relative_to(ROOT)}")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    before = os.getloadavg()[0]
    found = measure(args.requests, args.rounds) | {"many_ms": many_tokens(args.rounds)}
    print("\n".join(lines(found)))
    if args.save:
        found["machine"] = machine() | cpu() | {"threads": args.threads}
        found["load"] = [before, os.getloadavg()[0]]
        write_text(RESULTS, json.dumps(found, indent=1) + "\n")


def report(path: Path = RESULTS) -> str:
    """The saved figures of steps as Markdown, and on what they were measured."""
    found = json.loads(path.read_text(encoding="utf-8"))
    about, load = found["machine"], found["load"]
    machine = f"{about['threads']} threads, {about['cpu']} ({', '.join(about['features'])})"
    busy = f"load {load[0]:.1f} before and {load[1]:.1f} behind, the benchmark itself included"
    return "\n".join([*lines(found | {"many_ms": {}}), "", f"{machine}; {busy}."])


if __name__ == "__main__":
    main()
