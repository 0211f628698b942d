"""On a GPU, in the child: a submission timed in turns with the engine's own kernel, beside what the
GPU could do at best."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from labkit.kernels.cases.large import Large
from labkit.kernels.measure import timing
from labkit.kernels.measure.on_gpu import moved
from labkit.kernels.verdict import oracles
from mini_vllm.kernels.launch import KernelSpec

COPY_BYTES = 2**30
FLUSH_BYTES = 256 * 2**20


class CudaClock:
    """Times launches with events; between them the L2 cache is overwritten."""

    def __init__(self) -> None:
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self._flush = torch.empty(max(FLUSH_BYTES, 2 * l2), dtype=torch.uint8, device="cuda")

    def time(self, launch: Callable[[], None]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        begin.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end) * 1e3)

    def host(self, launch: Callable[[], None]) -> float:
        """Microseconds until Python goes on, with nothing before it on the device: median of 50."""
        times = []
        for _ in range(50):
            torch.cuda.synchronize()
            start = time.perf_counter()
            launch()
            times.append((time.perf_counter() - start) * 1e6)
        return statistics.median(times)

    def device_wide(self, launch: Callable[[], None]) -> float:
        """Microseconds until the whole device is idle again, less those of an empty wait."""
        times = []
        for work in (lambda: None, launch):
            torch.cuda.synchronize()
            start = time.perf_counter()
            work()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e6)
        return times[1] - times[0]

    def wall(self) -> float:
        return time.perf_counter()


def measure_ceilings() -> dict[str, float]:
    """Bytes and bfloat16 FLOPs a second of this GPU: a large copy, and a large product."""
    clock = CudaClock()
    source = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    # Random numbers: a GPU multiplies zeros faster, because it stays cooler.
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)

    def copy() -> None:
        target.copy_(source)

    def multiply() -> None:
        torch.mm(a, b, out=product)

    for work in (copy, multiply):
        work()
    copies, products = ([clock.time(work) for _ in range(20)] for work in (copy, multiply))
    return {
        "bandwidth": 2 * COPY_BYTES / timing.summarise(copies).median * 1e6,
        "flops": 2 * 8192**3 / timing.summarise(products).median * 1e6,
    }


def time_large(
    kernels: Any, reference: Any, spec: KernelSpec, large: Large, ceilings: dict[str, float],
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Time a submission in turns with the engine's kernel on three sets of inputs."""
    cuda = torch.device("cuda")
    generator = torch.Generator(cuda).manual_seed(seed)
    sets = [large.make(generator, cuda) for _ in range(3)]
    candidates = {
        name: [launcher(spec, module, problem) for problem in sets]
        for name, module in (("yours", kernels), ("reference", reference))
    }
    others = baselines(spec, sets)
    for launches in (candidates | others).values():  # compile, and warm the clocks up
        for launch in launches:
            launch()
    clock = CudaClock()
    samples = timing.interleave(clock, candidates | others)
    row = timing_row(samples, spec.work(**sets[0]), ceilings)
    stream = clock.time(candidates["yours"][0])
    doubt = timing.suspicion(
        timing.summarise(samples["yours"]), row["floor_us"], stream,
        clock.device_wide(candidates["yours"][0]),
    )  # fmt: skip
    findings = [("values", f"{large.name}: {doubt}")] if doubt else []
    findings += same_answer(kernels, reference, spec, sets[0], large.name)
    whole = {"yours": lambda: launcher(spec, kernels, sets[0])()}  # with its plan, as in a step
    whole |= {name: launches[0] for name, launches in others.items()}
    host = {name: clock.host(launch) for name, launch in whole.items()} if others else {}
    about = {"name": large.name, "target": large.target, "host_us": host}
    return {"part": "timing", "findings": findings, "ceilings": ceilings, **about, **row}


def same_answer(
    kernels: Any, reference: Any, spec: KernelSpec, problem: Mapping[str, Any], where: str
) -> list[tuple[str, str]]:
    """What is timed must be right too: a finding if the engine's kernel gives other numbers.

    A kernel could tell a benchmark by its size. The small cases do not see what it does then.
    """
    written = [name for name in (*spec.outputs, *spec.updates) if problem.get(name) is not None]
    start = {name: problem[name].clone() for name in written}
    answers = []
    for module in (kernels, reference):
        for name in written:
            problem[name].copy_(start[name])
            if name in spec.outputs:
                problem[name].fill_(float("nan"))
        launcher(spec, module, problem)()
        outputs = {name: problem[name].clone() for name in written}
        answers.append(oracles.judged(spec.name, outputs))
    return [
        ("values", message.replace("the first run", "the engine's kernel"))
        for _, message in moved(answers[1], answers[0], "bfloat16", where)
    ]


def launcher(spec: KernelSpec, kernels: Any, problem: Mapping[str, Any]) -> Callable[[], None]:
    """A call that only launches: what a launcher computes is computed now."""
    launches = spec.plan(**problem)

    def launch() -> None:
        for each in launches:
            each.run(kernels)

    return launch


def baselines(spec: KernelSpec, sets: list[dict[str, Any]]) -> dict[str, list[Callable[[], None]]]:
    """What torch has for the same problem: its product, attention over contiguous keys for a
    prefill, and for a graph's inputs the copies and fills that a CPU does."""
    if spec.name in ("gemm", "gemv"):
        return {"torch": [multiply(problem) for problem in sets]}
    if spec.name == "decode_inputs":
        return {"torch": [fill(problem) for problem in sets]}
    if not spec.name.endswith("_prefill"):
        return {}
    from torch.nn.functional import scaled_dot_product_attention

    def attend(problem: dict[str, Any]) -> Callable[[], None]:
        requests = len(problem["seq_lens"])
        query, key, value = (
            torch.randn_like(
                torch.empty(
                    requests, heads, problem["max_query_len"], problem["query"].shape[2],
                    dtype=problem["query"].dtype, device="cuda",
                )
            )
            for heads in (problem["query"].shape[1], *(2 * [problem["key_cache"].shape[2]]))
        )  # fmt: skip

        def launch() -> None:
            scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

        return launch

    return {"torch": [attend(problem) for problem in sets]}


def multiply(problem: Mapping[str, Any]) -> Callable[[], None]:
    """The library's product of a problem, into an output of its own."""
    x, weight = problem["x"], problem["weight"].T
    output = torch.empty_like(problem["output"])

    def launch() -> None:
        torch.matmul(x, weight, out=output)

    return launch


def fill(problem: Mapping[str, Any]) -> Callable[[], None]:
    """A step's inputs, copied by the engine as it does without kernels."""
    from mini_vllm.worker.cuda_graphs import StaticInputs

    names = ("input_ids", "positions", "slot_mapping", "seq_lens", "block_table")
    static: Any = SimpleNamespace(**{name: problem[f"static_{name}"] for name in names})
    step: Any = SimpleNamespace(**{name: problem[name] for name in names})

    def launch() -> None:
        StaticInputs.fill(static, step.input_ids, step.positions, step, problem["bucket"])

    return launch


def timing_row(
    samples: Mapping[str, list[float]], work: Any, ceilings: Mapping[str, float]
) -> dict[str, Any]:
    """One row of the roofline table; times in microseconds, rates in bytes and FLOPs a second."""
    times = {name: timing.summarise(values) for name, values in samples.items()}
    by_bytes = work.num_bytes / ceilings["bandwidth"] * 1e6
    by_flops = work.flops / ceilings["flops"] * 1e6
    floor, yours = max(by_bytes, by_flops), times["yours"].median
    return {
        "bytes": work.num_bytes,
        "flops": work.flops,
        "bound": "memory" if by_bytes >= by_flops else "compute",
        "floor_us": floor,
        "times": {name: each.plain() for name, each in times.items()},
        "bytes_per_second": work.num_bytes / yours * 1e6,
        "flops_per_second": work.flops / yours * 1e6,
        "share": floor / yours,
        "ratio": {
            name: timing.paired_ratio(samples["yours"], values)
            for name, values in samples.items()
            if name != "yours"
        },
    }
