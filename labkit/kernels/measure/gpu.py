"""GPU mode: the same cases on a real GPU, between guard bands, in many configurations, and timed.

    correctness   every case but the largest; some for each num_warps and num_stages that compile
    proof         the profiler must have seen the submitted kernels, and no others
    sanitizer     compute-sanitizer's memcheck on the cases, where it works
    timing        problems of an engine's size, in turns with the engine's own kernel

All of it runs in a child without TRITON_INTERPRET (`measure_here`), which gets source text and
names; outputs travel back as bytes and the parent compares them. Where there is no GPU, `device`
says so and nothing pretends to have run.
`on_gpu` runs the cases there, `gpu_timing` measures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from labkit.kernels.cases import SPECS, build, cases_of
from labkit.kernels.cases.large import large_of
from labkit.kernels.measure.gpu_timing import measure_ceilings, time_large
from labkit.kernels.measure.guard import guard_all
from labkit.kernels.measure.on_gpu import DEVICE, proof, run_case, small_cases, swept
from labkit.kernels.verdict import numbers as verdict
from labkit.kernels.watch.extract import Submission, extract, reference_source
from labkit.kernels.watch.findings import Finding
from mini_vllm.kernels.launch import KernelSpec

PARTS = ("case", "proof", "timing", "sanitizer")


# ---------------------------------------------------------------- in the parent
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


# ---------------------------------------------------------------- in the child
def measure_here(
    submission: dict[str, Any], spec: str, seed: int, parts: list[str]
) -> Iterator[dict[str, Any]]:
    """The scenario behind `measure`; yields one dict for each case, the proof, each time."""
    os.environ.pop("TRITON_INTERPRET", None)  # before Triton is imported
    judged = Submission(**submission)
    chosen, kernels = SPECS[spec], judged.module()
    if "case" in parts:
        cases = small_cases(spec, judged.optional)
        everywhere = swept(cases)
        for case in cases:
            yield run_case(kernels, chosen, case, seed, case.name in everywhere)
    if "proof" in parts:
        yield proof(kernels, chosen, seed)
    if "timing" in parts:
        reference, ceilings = engine_kernels(chosen), measure_ceilings()
        for large in large_of(spec, judged.optional):
            yield time_large(kernels, reference, chosen, large, ceilings, seed)


def engine_kernels(spec: KernelSpec) -> Any:
    """The engine's own kernels, whatever stands in for their module in this process."""
    found = extract(reference_source(spec), spec, spec.module)
    assert isinstance(found, Submission), found
    return found.module()


def main(words: list[str]) -> int:
    """What runs under compute-sanitizer: each case once; the source comes on stdin."""
    os.environ.pop("TRITON_INTERPRET", None)
    name, seed, filename = words
    spec = SPECS[name]
    submission = extract(sys.stdin.read(), spec, filename)
    assert isinstance(submission, Submission), submission
    kernels = submission.module()
    for case in small_cases(name, submission.optional):
        problem, _ = build(name, case.name, int(seed))
        on_gpu = {k: each.view for k, each in guard_all(problem, DEVICE).items()}
        for launch in spec.plan(**(problem | on_gpu)):
            launch.run(kernels)
        torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
