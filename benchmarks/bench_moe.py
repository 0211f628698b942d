"""The experts of a layer by tokens, by CPU time: ours beside other ways to multiply sorted rows.

    ours         `StackedExperts`, and in int8 `SeparateExperts`
    loop         rows sorted, one `F.linear` an expert
    grouped_mm   rows sorted, `torch._grouped_mm`
    transformers `Qwen3MoeExperts`: its loop over masks ("eager"), and its own grouped_mm
    vLLM         `CPUFusedMOE`, in a process of its own, where `make real-vllm` has made its
                 environment; else the program says that it takes no part

Random weights, experts drawn evenly, no router. All ways take turns in one process, and of some
rounds the best counts: on a shared machine wall time says what the neighbours did.

    python -m benchmarks.bench_moe                      two shapes, float32 and bfloat16, one thread
    python -m benchmarks.bench_moe --tokens 1 64 --rounds 9 --save
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bench_offline import installed_vllm, vllm_environment
from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm.model.build import default_dtype
from mini_vllm.model.layers import Build
from mini_vllm.model.moe.args import MoEArgs
from mini_vllm.model.moe.experts import Experts, make_experts
from mini_vllm.model.moe.grouped import sort_by_expert
from mini_vllm.quantization.config import ONLINE

SHAPES = {  # experts, chosen, hidden, inner
    "128 small": (128, 8, 512, 192),
    "8 large": (8, 2, 512, 1024),
}
TOKENS = (1, 8, 64, 512)
WANTED = 1.3
"""Most that ours may take of the time of `torch._grouped_mm`."""
Way = Callable[[Tensor, Tensor, Tensor], Tensor]
PASSES = 5
"""One behind the other, of a way in its turn."""
VLLM_CHILD = Path(__file__).with_name("vllm_moe_child.py")


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ours(shape: tuple[int, ...], weights: Sequence[Tensor], dtype: torch.dtype, form: str) -> Way:
    experts, k, hidden, inner = shape
    args = MoEArgs(experts, k, inner)
    build = Build(quant=ONLINE[form]) if form else Build(values=dtype)
    with default_dtype(dtype):
        layer: Experts = make_experts(hidden, args, build, "experts").requires_grad_(False)
    for name, weight in zip(("gate_up_proj", "down_proj"), weights, strict=True):
        for index in range(experts):
            whole = layer if form else getattr(layer, name).weight[index]
            if form:
                whole = getattr(layer.get_submodule(str(index)), name).weight
            whole.copy_(weight[index])
    for module in layer.modules():
        if hasattr(module, "process_weights_after_loading"):
            module.process_weights_after_loading()
    return layer


def sorted_rows(product: Callable[[Tensor, Tensor, Tensor], Tensor], weights: list[Tensor]) -> Way:
    """Rows sorted by expert, two products, results added."""

    def run(x: Tensor, scale: Tensor, ids: Tensor) -> Tensor:
        pairs, counts = sort_by_expert(ids, len(weights[0]))
        tokens = pairs // ids.shape[1]
        gate, up = product(x[tokens], weights[0], counts).chunk(2, -1)
        y = product(F.silu(gate).mul_(up), weights[1], counts)
        return torch.zeros_like(x).index_add_(0, tokens, y * scale.flatten()[pairs, None])

    return run


def loop_product(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    rows = zip(x.split(counts.tolist()), weight, strict=True)
    return torch.cat([F.linear(own, matrix) for own, matrix in rows if len(own)])


def grouped_product(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    return torch._grouped_mm(x, weight.transpose(1, 2), offs=counts.cumsum(0).int())


def of_transformers(shape: tuple[int, ...], weights: list[Tensor], way: str) -> Way:
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    experts, k, hidden, inner = shape
    config = Qwen3MoeConfig(
        hidden_size=hidden, moe_intermediate_size=inner, num_experts=experts, num_experts_per_tok=k
    )
    config._experts_implementation = way
    layer = Qwen3MoeExperts(config).to(weights[0].dtype).requires_grad_(False)
    layer.gate_up_proj.copy_(weights[0])
    layer.down_proj.copy_(weights[1])
    return lambda x, scale, ids: layer(x, ids, scale)


class VLLM:
    """vLLM's experts in a process of its own; a way whose time is that process's."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder = process, folder

    def ask(self, **request: str) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "vLLM's process has ended"
        return json.loads(answer)

    def load(self, weights: Sequence[Tensor]) -> None:
        file = self.folder / "weights"
        torch.save({"w13": weights[0], "w2": weights[1]}, file)
        print(f"vLLM takes {self.ask(load=str(file))}")

    def __call__(self, x: Tensor, scale: Tensor, ids: Tensor) -> Tensor:
        file = self.folder / "inputs"
        torch.save({"x": x, "scale": scale, "ids": ids}, file)
        self.ms = self.ask(run=str(file))
        output: Tensor = torch.load(f"{file}.out")
        return output


@contextmanager
def started_vllm() -> Iterator[VLLM | None]:
    """None where vLLM is not installed, which is said aloud."""
    found = installed_vllm()
    if found is None:
        yield None
        return
    python = str(found)
    environment = os.environ | vllm_environment(python) | {"OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [python, str(VLLM_CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=environment,
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        yield VLLM(process, Path(folder))
        process.stdin.close()


def spent_ms(way: Way, inputs: tuple[Tensor, ...]) -> float:
    """The shortest of some passes, in milliseconds: the first have their weights to fetch, and
    ways that share them would be ahead."""
    spent = []
    for _ in range(PASSES):
        begin = time.process_time_ns()
        way(*inputs)
        ms = (time.process_time_ns() - begin) / 1e6
        spent.append(way.ms if isinstance(way, VLLM) else ms)
    return min(spent)


def measure(
    name: str, dtype: torch.dtype, tokens: Sequence[int], rounds: int, other: VLLM | None
) -> list[dict[str, Any]]:
    shape = experts, k, hidden, inner = SHAPES[name]
    sizes = (experts, 2 * inner, hidden), (experts, hidden, inner)
    weights = [(draw(*size, seed=i) / 16).to(dtype) for i, size in enumerate(sizes)]
    ways: dict[str, Way] = {
        "ours": ours(shape, weights, dtype, ""),
        "ours int8": ours(shape, weights, dtype, "int8"),
        "loop": sorted_rows(loop_product, weights),
        "grouped_mm": sorted_rows(grouped_product, weights),
        "transformers eager": of_transformers(shape, weights, "eager"),
        "transformers grouped_mm": of_transformers(shape, weights, "grouped_mm"),
    }
    if other is not None:
        other.load(weights)
        ways["vLLM"] = other
    rows = []
    for count in tokens:
        scores = draw(count, experts, seed=7).softmax(-1)
        scale, ids = scores.topk(k)
        inputs = draw(count, hidden, seed=8).to(dtype), scale.to(dtype), ids
        right = ways["loop"](*inputs).float()
        for way, run in ways.items():
            error = float((run(*inputs).float() - right).norm() / right.norm())
            assert error < 0.03, f"{way} differs from the loop by {error:.1e}"
        turns = [{way: spent_ms(run, inputs) for way, run in ways.items()} for _ in range(rounds)]
        best = {way: round(min(turn[way] for turn in turns), 3) for way in ways}
        ratio = round(best["ours"] / best["grouped_mm"], 2)
        hit = len(ids.unique())
        rows.append(
            dict(
                shape=name,
                dtype=str(dtype).removeprefix("torch."),
                tokens=count,
                hit=hit,
                ms=best,
                ratio=ratio,
            )
        )
        times = "  ".join(f"{way} {ms:.2f}" for way, ms in best.items())
        print(f"{name}, {rows[-1]['dtype']}, {count} tokens, {hit} hit: {times}  ratio {ratio}")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=tuple(SHAPES))
    parser.add_argument("--dtypes", nargs="+", default=("float32", "bfloat16"))
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/moe.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with torch.inference_mode(), started_vllm() as other:
        for name in args.shapes:
            for dtype in args.dtypes:
                rows += measure(name, getattr(torch, dtype), args.tokens, args.rounds, other)
    worst = max(row["ratio"] for row in rows)
    print(f"ours / torch._grouped_mm: at most {worst}; wanted {WANTED}")
    if args.save:
        seen = dict(machine=platform.processor() or platform.machine(), torch=torch.__version__)
        text = json.dumps({**seen, "rounds": args.rounds, "rows": rows}, indent=1)
        write_text(ROOT / "benchmarks" / "results" / "moe.json", text + "\n")
    return 0 if worst <= WANTED else 1


if __name__ == "__main__":
    raise SystemExit(main())
