"""GPU mode: the same cases on a real GPU, between guard bands, in many configurations, and timed.

    correctness   every case but the largest; some for each num_warps and num_stages that compile
    proof         the profiler must have seen the submitted kernels, and no others
    sanitizer     compute-sanitizer's memcheck on the cases, where it works
    timing        problems of an engine's size, in turns with the engine's own kernel

All of it runs in a child without TRITON_INTERPRET (`measure_here`), which gets source text and
names; outputs travel back as bytes and the parent compares them. Where there is no GPU, `device`
says so and nothing pretends to have run.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.cases import SPECS, build, cases_of
from labkit.kernels.cases.draw import Case
from labkit.kernels.cases.large import Large, large_of
from labkit.kernels.measure import timing
from labkit.kernels.measure.guard import Guarded, guard_all
from labkit.kernels.verdict import numbers as verdict
from labkit.kernels.verdict import oracles
from labkit.kernels.watch.extract import Submission, extract, reference_source
from labkit.kernels.watch.findings import Finding
from mini_vllm.kernels.launch import KernelSpec

WARPS, STAGES, REPEATS = (1, 2, 4, 8), (1, 2, 3), 20
ROUNDING = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""How far two configurations may differ: they add up in another order."""
ALLOWED_KERNELS = ("Memset", "Memcpy", "fill", "Fill", "elementwise", "copy")
BIG = 2**28  # bytes of a tensor; a larger case is left to CPU mode
DEVICE = "cuda"
COPY_BYTES = 2**30
FLUSH_BYTES = 256 * 2**20


def device() -> str:
    """The GPU's name.

    Raises:
        ValueError: there is none; the message says what that means.
    """
    if not torch.cuda.is_available():
        raise ValueError(
            "this machine has no CUDA device that torch can use, so GPU mode cannot run here;"
            " MODE=cpu judges the same kernel without one"
        )
    return torch.cuda.get_device_name(0)


# ---------------------------------------------------------------- in the parent
PARTS = ("case", "proof", "timing", "sanitizer")


def measure_kernel(
    submission: Submission, spec: KernelSpec, seed: int, parts: Sequence[str] = PARTS
) -> tuple[tuple[Finding, ...], dict[str, Any]]:
    """Judge a submission on this machine's GPU: findings, and what was measured as JSON data.

    Args:
        parts: which of `PARTS` to run.

    Raises:
        ValueError: there is no GPU.
    """
    from labkit.course.root import find_root
    from labkit.inside.child import Limits
    from labkit.process.worker import Worker, WorkerError

    name = device()
    limits = Limits(seconds=300, memory_mb=0)  # CUDA maps far more than it uses
    findings: list[Finding] = []
    measured: dict[str, Any] = {"gpu": name}
    try:
        with Worker(find_root(), {}, limits, "the GPU") as worker:
            for item in worker.stream(
                "labkit.kernels.measure.gpu:measure_here", submission=asdict(submission),
                spec=spec.name, seed=seed, parts=list(parts),
            ):  # fmt: skip
                findings += _judge(item, spec, seed)
                measured.setdefault(item["part"], []).append(_without_tensors(item))
    except WorkerError as error:
        kind = {"hang": "timeout", "died": "crash"}.get(error.kind, "crash")
        findings.append(Finding(kind, f"on the GPU: {error}", spec.kernels[-1]))
    if "sanitizer" in parts:
        measured["sanitizer"] = sanitize(submission, spec, seed)
        if measured["sanitizer"]["status"] == "failed":
            message = f"compute-sanitizer: {measured['sanitizer']['text']}"
            findings.append(Finding("oob", message, spec.kernels[-1]))
    return tuple(findings), measured


def _judge(item: Mapping[str, Any], spec: KernelSpec, seed: int) -> list[Finding]:
    """What one part of the child's answer means."""
    kernel = spec.kernels[-1]
    findings = [Finding(kind, message, kernel) for kind, message in item.get("findings", [])]
    if item["part"] == "case":
        case = next(case for case in cases_of(spec.name) if case.name == item["case"])
        judge = verdict.Judge(spec.name, case, seed)
        outputs = {
            name: torch.as_tensor(values).to(getattr(torch, dtype))
            for name, (dtype, values) in item["outputs"].items()
        }
        for name, difference in judge.differences(outputs).items():
            if difference.why:
                message = f"on the GPU, case {case.name} ({case.about}): {name} {difference.why}"
                findings.append(Finding("values", message, kernel, tensor=name))
    return findings


def _without_tensors(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != "outputs"}


def summary(measured: Mapping[str, Any]) -> str:
    """What the status line shows: "H200 17/17 cases, 84% of bandwidth"."""
    cases = measured.get("case", [])
    good = sum(not case["findings"] for case in cases)
    best = max((row["share"] for row in measured.get("timing", [])), default=None)
    share = "not timed" if best is None else f"{best:.0%} of the roof"
    return f"{measured['gpu']} {good}/{len(cases)} cases, {share}"


def sanitizer_command() -> str:
    """Where compute-sanitizer is, or ""."""
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    return shutil.which("compute-sanitizer", path=places) or ""


def sanitize(submission: Submission, spec: KernelSpec, seed: int) -> dict[str, str]:
    """Run the cases under memcheck: status "passed", "failed" or "not run", and why.

    It works on some machines only, so a program without kernels is tried first. The caching
    allocator would hide what is out of bounds, so it is off.
    """
    tool = sanitizer_command()
    if not tool:
        return {"status": "not run", "text": "compute-sanitizer is not installed"}
    env = dict(os.environ) | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    words = [tool, "--tool", "memcheck", "--error-exitcode", "77", sys.executable]
    probe = ["-c", "import torch; torch.ones(4, device='cuda').sum().item()"]
    try:
        tried = subprocess.run(words + probe, env=env, capture_output=True, timeout=120)
        if tried.returncode:
            return {"status": "not run", "text": "compute-sanitizer does not work on this machine"}
        module = ["-m", "labkit.kernels.measure.gpu", spec.name, str(seed), submission.filename]
        done = subprocess.run(
            words + module, env=env, input=submission.source.encode(), capture_output=True,
            timeout=240,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, OSError) as error:
        return {"status": "not run", "text": f"{type(error).__name__} under compute-sanitizer"}
    lines = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if "===" in line]
    if done.returncode == 77:
        return {"status": "failed", "text": "\n".join(lines[:8])}
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return {"status": "not run", "text": "".join(last) or f"exit code {done.returncode}"}
    return {"status": "passed", "text": "memcheck: no errors"}


# ---------------------------------------------------------------- in the child: correctness
def measure_here(
    submission: dict[str, Any], spec: str, seed: int, parts: list[str]
) -> Iterator[dict[str, Any]]:
    """The scenario behind `measure`; yields one dict for each case, the proof, each time."""
    os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported
    chosen, kernels = SPECS[spec], Submission(**submission).module()
    if "case" in parts:
        everywhere = swept(spec)
        for case in small_cases(spec):
            yield run_case(kernels, chosen, case, seed, case.name in everywhere)
    if "proof" in parts:
        yield proof(kernels, chosen, seed)
    if "timing" in parts:
        reference, ceilings = engine_kernels(chosen), measure_ceilings()
        for large in large_of(spec):
            yield time_large(kernels, reference, chosen, large, ceilings, seed)


def swept(spec: str) -> set[str]:
    """The cases that run in all configurations, one of each dtype: compiling takes its time."""
    return set({case.dtype: case.name for case in small_cases(spec) if not case.graded}.values())


def engine_kernels(spec: KernelSpec) -> Any:
    """The engine's own kernels, whatever stands in for their module in this process."""
    found = extract(reference_source(spec), spec, spec.module)
    assert isinstance(found, Submission), found
    return found.module()


def small_cases(spec: str) -> list[Case]:
    """The cases whose memory, gaps included, fits any GPU."""
    return [
        case
        for case in cases_of(spec)
        if all(
            value.untyped_storage().nbytes() < BIG
            for value in build(spec, case.name, 0)[0].values()
            if isinstance(value, Tensor)
        )
    ]


def run_case(
    kernels: Any, spec: KernelSpec, case: Case, seed: int, everywhere: bool
) -> dict[str, Any]:
    """One case: outputs of its first run, and what changed in repeats with other poison.

    With `everywhere` in all configurations, else only as its launcher wants it.
    """
    problem, rules = build(spec.name, case.name, seed)
    guarded = guard_all(problem, DEVICE)
    on_gpu = problem | {name: each.view for name, each in guarded.items()}
    findings: list[tuple[str, str]] = []
    skipped: list[str] = []
    first: dict[str, Tensor] = {}
    chosen = configurations(spec, on_gpu)[: None if everywhere else 1]
    for number, (warps, stages) in enumerate(chosen):
        for repeat in range(REPEATS if number == 0 else 2):
            restart(spec, guarded, poison=float("nan") if repeat % 2 == 0 else -1e30)
            where = f"case {case.name}, num_warps {warps}, num_stages {stages}"
            problem_found = launch_once(kernels, spec, on_gpu, warps, stages)
            if problem_found:
                skipped.append(f"{where}: {problem_found}")
                break
            outputs = {name: guarded[name].view.clone() for name in (*spec.outputs, *spec.updates)
                       if name in guarded}  # fmt: skip
            first = first or outputs
            findings += damages(spec, guarded, rules, where)
            findings += moved(first, outputs, case.dtype, where)
    if not first:
        findings.append(("crash", f"case {case.name}: no configuration runs: {skipped[0]}"))
    sent = {
        name: (str(tensor.dtype).removeprefix("torch."), tensor.cpu())
        for name, tensor in first.items()
    }
    return {"part": "case", "case": case.name, "outputs": sent, "findings": findings[:8],
            "skipped": skipped}  # fmt: skip


def configurations(spec: KernelSpec, problem: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(num_warps, num_stages): the launcher's own first, then all others."""
    launch = spec.plan(**problem)[0]
    own = (launch.num_warps, launch.num_stages)
    return [own, *(pair for pair in itertools.product(WARPS, STAGES) if pair != own)]


def restart(spec: KernelSpec, guarded: Mapping[str, Guarded], poison: float) -> None:
    """The problem as it was, with outputs full of `poison`."""
    for name, each in guarded.items():
        each.reset(poison, output=name in spec.outputs)


def launch_once(
    kernels: Any, spec: KernelSpec, problem: Mapping[str, Any], warps: int, stages: int
) -> str:
    """Solve the problem; why it could not be launched, or ""."""
    from triton.runtime.errors import OutOfResources

    try:
        for launch in spec.plan(**problem):
            dataclasses.replace(launch, num_warps=warps, num_stages=stages).run(kernels)
        torch.cuda.synchronize()
    except OutOfResources as error:
        return str(error).splitlines()[0]
    return ""


def damages(
    spec: KernelSpec, guarded: Mapping[str, Guarded], rules: Any, where: str
) -> list[tuple[str, str]]:
    """What was written that may not be."""
    found = []
    for name, each in guarded.items():
        writable = rules.rule(name).writable
        if writable is None:
            writable = name in (*spec.outputs, *spec.updates)
        text = each.damage(writable)
        if text:
            found.append(("input_changed", f"{where}: {name}: {text}"))
    return found


def moved(
    first: Mapping[str, Tensor], outputs: Mapping[str, Tensor], dtype: str, where: str
) -> list[tuple[str, str]]:
    """Outputs that differ from the first run's by more than rounding."""
    found = []
    for name, tensor in outputs.items():
        same = tensor.double().nan_to_num(0.0), first[name].double().nan_to_num(0.0)
        finite = [torch.where(part.isinf(), 0.0, part) for part in same]
        error = float((finite[0] - finite[1]).norm() / finite[1].norm().clamp(min=1e-300))
        if error > ROUNDING[dtype] or not torch.equal(tensor.isnan(), first[name].isnan()):
            message = f"{where}: {name} differs from the first run by {error:.1e} (relative L2)"
            found.append(("race", message))
    return found


# ---------------------------------------------------------------- in the child: proof and timing
def proof(kernels: Any, spec: KernelSpec, seed: int) -> dict[str, Any]:
    """The names of all kernels that the profiler sees while one case runs."""
    from torch.profiler import ProfilerActivity, profile

    problem, _ = build(spec.name, small_cases(spec.name)[0].name, seed)
    on_gpu = {k: v.cuda() if isinstance(v, Tensor) else v for k, v in problem.items()}
    wanted = [launch.kernel for launch in spec.plan(**on_gpu)]
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for launch in spec.plan(**on_gpu):
            launch.run(kernels)
        torch.cuda.synchronize()
    names = [event.name for event in seen.events() if "CUDA" in str(event.device_type)]
    return {"part": "proof", "kernels": names, "findings": check_names(names, wanted)}


def check_names(names: list[str], wanted: list[str]) -> list[tuple[str, str]]:
    """Each wanted kernel must be among the names, and only copies and fills beside them."""
    if not names:
        return []  # some machines keep the profiler from the GPU: then there is no proof
    findings = [
        ("values", f"the profiler did not see {name} run")
        for name in wanted
        if not any(seen.startswith(name) for seen in names)
    ]
    foreign = [
        name
        for name in names
        if not any(name.startswith(known) for known in wanted)
        and not any(word in name for word in ALLOWED_KERNELS)
    ]
    findings += [("values", f"another kernel ran: {name}") for name in dict.fromkeys(foreign)]
    return findings


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
    return {"part": "timing", "name": large.name, "findings": findings, "ceilings": ceilings, **row}


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
    """What torch has for the same problem: attention over contiguous keys for a prefill."""
    if spec.name != "paged_prefill":
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


def main(words: list[str]) -> int:
    """What runs under compute-sanitizer: each case once; the source comes on stdin."""
    os.environ.pop("TRITON_INTERPRET", None)
    name, seed, filename = words
    spec = SPECS[name]
    submission = extract(sys.stdin.read(), spec, filename)
    assert isinstance(submission, Submission), submission
    kernels = submission.module()
    for case in small_cases(name):
        problem, _ = build(name, case.name, int(seed))
        on_gpu = {k: each.view for k, each in guard_all(problem, "cuda").items()}
        for launch in spec.plan(**(problem | on_gpu)):
            launch.run(kernels)
        torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
