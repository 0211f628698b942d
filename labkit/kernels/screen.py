"""What `check-kernel` shows: stage by stage, the first finding in full, what to type next."""

from __future__ import annotations

from pathlib import Path

import torch

from labkit.course.console import Screen, where_to_edit
from labkit.course.files import read_python
from labkit.course.manifest import Course, Exercise, Phase
from labkit.kernels.cases import SPECS
from labkit.kernels.measure.roofline import Gpu, points_of
from labkit.kernels.verdict.report import CheckResult, Stage
from labkit.kernels.watch.findings import KINDS, Finding

STYLES = {"passed": ("✓", "green"), "failed": ("✗", "red"), "not run": ("○", "dim")}
SHOWN = {
    "lint": "only kernels, with the parameters that the launcher passes",
    "compile": "Triton compiles it without a GPU",
    "interpreter": "every element that it touches, watched",
    "values": "against float64",
    "repeat": "other numbers; programs in another order",
    "efficiency": "bytes and FLOPs against the least possible",
    "controls": "wrong answers and a wrong kernel fail",
    "gpu": "on this machine's GPU",
}
ADVICE = {
    "oob": "Compare the mask with the shape: which lanes are inside?",
    "stale_read": "Masking scores afterwards is too late: mask the load.",
    "uninitialised": "An output holds anything at first: write before you read.",
    "undefined_lane": "Give the load an `other`, or never let the masked lanes count.",
    "race": "Who else works on this element? Another program: look at what program_id chooses."
    " Another lane of this one: tl.debug_barrier() between its access and yours.",
    "duplicate_store": "Two lanes have the same address: look at the offsets.",
    "coverage": "Which program and which lanes should write this element?",
    "overflow": "Cast to int64 before you multiply, not after.",
    "input_changed": "Write to outputs only; look at the pointer of this store.",
    "values": "Take the smallest case that fails and follow one element by hand.",
    "traffic": "What moves more than once? Look at the line above: load it once, outside of the"
    " loop, for all that need it.",
    "flops": "Which tiles cannot matter? Let the loop begin later or end earlier.",
    "timeout": "Does the loop's variable reach its end?",
}
SLOW_TO_COMPILE = (
    "Loops of tl.static_range are written out, and a thread holds its part of a tile in registers:"
    " use range, and smaller tiles."
)


def show_result(screen: Screen, result: CheckResult, course: Course, gpu: Gpu) -> None:
    """The whole screen of one check."""
    screen.line(f"check-kernel {result.kernel} · mode {result.mode}", "bold")
    screen.line(f"judged: {result.file} · seed {result.seed}", "dim")
    screen.line()
    for name in SHOWN:
        stage = result.stage(name)
        if name != "gpu" or result.mode == "gpu":
            _show_stage(screen, result, stage, course)
    if result.correct:
        _show_roofline(screen, result, gpu)
    screen.line()
    screen.line(tiers(result), "bold green" if result.passed else "bold")
    screen.line(conclusion(result))
    screen.line(f"next: {next_step(result, course)}", "bold")


def _show_stage(screen: Screen, result: CheckResult, stage: Stage, course: Course) -> None:
    mark, style = STYLES[stage.status]
    if stage.findings and stage.findings[0].kind == "todo":
        mark, style = "○", "dim"
    text = "not run" if stage.status == "not run" else stage.text
    line = f"{mark} {stage.name:<12} {SHOWN[stage.name]}"
    screen.line(f"{line}: {text}" if text else line, style, 2)
    if stage.name == "compile" and stage.status == "passed":
        _show_compiled(screen, result)
    if stage.findings:
        _show_finding(screen, stage, result, course)
        others = len(stage.findings) - 1
        if others:
            kinds = ", ".join(dict.fromkeys(finding.kind for finding in stage.findings[1:]))
            more = f"and {others} more finding{'s' * (others > 1)} ({kinds})"
            screen.line(f"{more}; --json FILE has them all", "dim", 6)


def _show_compiled(screen: Screen, result: CheckResult) -> None:
    """What the largest version of each kernel needs on the newest architecture."""
    newest = max(entry["capability"] for entry in result.compiled)
    worst: dict[str, dict[str, object]] = {}
    for entry in result.compiled:
        known = worst.get(entry["kernel"])
        if entry["capability"] == newest and (
            known is None or entry["registers"] > int(str(known["registers"]))
        ):
            worst[entry["kernel"]] = entry
    for kernel, entry in worst.items():
        widest = max(map(int, entry["load_widths"]), default=0)  # type: ignore[call-overload]
        spills = entry["spill_stores"] or "no"
        cores = "tensor cores" if entry["uses_tensor_cores"] else "no tensor cores"
        text = f"{entry['registers']} registers, {spills} bytes spilled,"
        text += f" {entry['shared_bytes']:,} bytes shared, loads up to {widest} bytes, {cores}"
        screen.line(f"{kernel} on sm_{newest}: {text}", "dim", 6)


def _show_finding(screen: Screen, stage: Stage, result: CheckResult, course: Course) -> None:
    finding = stage.findings[0]
    if finding.kind == "todo":
        screen.line(finding.message, "dim", 6)
        return
    screen.line(f"{finding.kind}: {KINDS[finding.kind]}", "red", 6)
    screen.line(finding.message, indent=6)
    if finding.line:
        text = source_line(course.root, result.file, finding.line)
        screen.line(place_of(result, finding), indent=6)
        if text:
            screen.line(f"│ {text}", "dim", 6)
    if finding.count > 1:
        screen.line(f"{finding.count:,} elements in all", indent=6)
    if finding.kind in ADVICE:
        slow = stage.name == "compile" and finding.kind == "timeout"
        screen.line(SLOW_TO_COMPILE if slow else ADVICE[finding.kind], "yellow", 6)


def place_of(result: CheckResult, finding: Finding) -> str:
    """ "labs/04-attention/triton_paged.py:82 (paged_decode_kernel)"; an import has no kernel."""
    kernel = f" ({finding.kernel})" if finding.kernel else ""
    return f"{result.file}:{finding.line}{kernel}"


def source_line(root: Path, file: str, line: int) -> str:
    """A line of the judged file, without its indentation; "" if there is none."""
    try:
        return read_python(root / file).split("\n")[line - 1].strip()
    except (OSError, IndexError, SyntaxError):
        return ""


def _show_roofline(screen: Screen, result: CheckResult, gpu: Gpu) -> None:
    points = points_of(result)
    if not points or result.gpu:
        return
    screen.line()
    screen.line(f"prediction for {gpu.name} ({gpu.source}); nothing of this was measured", "dim", 2)
    for point in points:
        ratio = point.num_bytes / point.least_bytes
        text = f"{point.num_bytes:,} bytes, {ratio:.2f}x of the least; {point.bound(gpu)} bound;"
        text += f" its bytes alone take {point.predicted(gpu):.3f} µs"
        if point.predicted(gpu) > 1.05 * point.floor(gpu):
            text += f", the least possible {point.floor(gpu):.3f} µs"
        else:
            text += ", and no kernel can do with fewer"
        screen.line(f"{point.name}: {text}", "dim", 2)


def tiers(result: CheckResult) -> str:
    """The status line; what did not run says so."""
    lint, compiled = result.stage("lint"), result.stage("compile")
    parts = ["not started" if result.status == "todo" else f"lint {STYLES[lint.status][0]}"]
    parts.append(f"compile {compiled.text or compiled.status}")
    interpreter, values = result.stage("interpreter"), result.stage("values")
    whole = "" if len(result.cases) in (0, result.planned) else f" of {result.planned} cases"
    parts.append(f"interpreter {interpreter.text or interpreter.status}{whole}")
    parts.append(f"values {values.text or values.status}")
    efficiency = result.stage("efficiency")
    parts.append(efficiency.text or "traffic not run")
    if result.stage("repeat").status == "not run" and result.correct:
        parts.append("repeats not run")
    gpu = result.stage("gpu")
    parts.append(f"GPU {gpu.text or gpu.status}")
    return " · ".join(parts)


def conclusion(result: CheckResult) -> str:
    """One sentence that claims no more than what ran."""
    if result.status == "broken":
        return "The checker itself is broken: this run gives no score. Please report it."
    if result.status == "todo":
        return "Not written yet."
    if not result.correct:
        return "Not right yet; later stages were not run."
    where = "on this GPU" if result.gpu else "on the CPU: no GPU has run it"
    speed = "right" if result.passed else "right, but it moves or computes too much"
    points = f"{result.score:.0%} of the points"
    return f"It is {speed} in every case that ran {where}. {points}."


def exercise_of(course: Course, kernel: str) -> tuple[Phase, Exercise] | None:
    """The task in which a learner writes this kernel, if a phase has one."""
    spec = SPECS[kernel]
    for phase in course.ready:
        for name in reversed(spec.kernels):
            task = phase.holes(spec.module).get(name) if spec.module in phase.modules else None
            if task:
                return phase, task
    return None


def next_step(result: CheckResult, course: Course) -> str:
    """What to type or read now."""
    again = f"make check-kernel KERNEL={result.kernel}"
    known = exercise_of(course, result.kernel)
    if result.passed and result.mode == "cpu":
        if known and not torch.cuda.is_available():
            return f"the next task: make lab-{known[0].number}   [with a GPU: {again} MODE=gpu]"
        return f"{again} MODE=gpu, on a machine with a GPU"
    if result.passed:
        return "make gpu-report"
    if known and result.file.startswith("labs/"):
        phase, task = known
        found = (finding for stage in result.stages for finding in stage.findings if finding.line)
        first = next((finding for finding in found if finding.kind != "todo"), None)
        own = [name for name in SPECS[result.kernel].kernels if name in task.functions]
        edit = place_of(result, first) if first else where_to_edit(phase, task, *own)
        return (
            f"edit {edit}; read phases/{phase.slug}/{task.read};"
            f" make hint-{phase.number}; then {again}"
        )
    return f'{again} FILE={result.file} ARGS="--seed {result.seed}" judges the same cases again'
