"""On a GPU, in the child: the cases between guard bands, in many configurations, and the proof that
the submitted kernels are those that ran."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.cases import build, cases_of
from labkit.kernels.cases.draw import Case
from labkit.kernels.cases.rules import CaseRules
from labkit.kernels.measure.guard import Guarded, guard_all
from mini_vllm.kernels.launch import KernelSpec

WARPS, STAGES, REPEATS = (1, 2, 4, 8), (1, 2, 3), 20
ROUNDING = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""How far two configurations may differ: they add up in another order."""
ALLOWED_KERNELS = ("Memset", "Memcpy", "fill", "Fill", "elementwise", "copy")
BIG = 2**28  # bytes of a tensor; a larger case is left to CPU mode
DEVICE = "cuda"


def swept(cases: Sequence[Case]) -> set[str]:
    """Those that run in all configurations, one of each dtype: compiling takes its time."""
    return set({case.dtype: case.name for case in cases if not case.graded}.values())


def small_cases(spec: str, optional: Collection[str] | None = None) -> list[Case]:
    """The cases whose memory, gaps included, fits any GPU, and all of whose programs run; and whose
    quotients may be rounded as a GPU does. `optional`: see `cases_of`."""
    cases = [case for case in cases_of(spec, optional) if not case.divides]
    return [case for case in cases if _fits(*build(spec, case.name, 0))]


def _fits(problem: Mapping[str, Any], rules: CaseRules) -> bool:
    tensors = [value for value in problem.values() if isinstance(value, Tensor)]
    small = all(tensor.untyped_storage().nbytes() < BIG for tensor in tensors)
    return small and rules.programs is None


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


# ---------------------------------------------------------------- proof
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
