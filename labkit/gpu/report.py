"""`gpu-report`: measure the engine on this machine's GPU, part by part, and keep the figures.

    decode       a token's time by the number of requests, beside its floor and its target
    smoke        each feature's tokens against the CPU's
    kernels      every kernel through the kernel checker, CPU mode first, then on the GPU
    tests        what only a GPU can show about the engine (`labkit.gpu.checks`)
    roofline     every kernel at an engine's size: time, bytes and FLOPs against measured ceilings
    end-to-end   nano-vLLM's workload by this engine, and by transformers in two ways

A part is a list of items; each runs in a process of its own and is ended when the part's time is
up. What was cut is named. Parts merge into benchmarks/results/GPU/report.json, from which
report.md and report.png are drawn. Needs torch, triton and transformers, and nothing else of the
course; without matplotlib there is no PNG, and `--render` draws it later, on any machine.

    python -m labkit gpu-report [--part NAME]... [--only ITEM]... [--out FOLDER]
    python -m labkit gpu-report --render benchmarks/results/GPU
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.course.root import ROOT
from labkit.inside import child

RESULTS = ROOT / "benchmarks" / "results"
SCHEMA = 1
SEED = 20260
PART_SECONDS = {
    "decode": 80.0, "smoke": 80.0, "kernels": 120.0, "tests": 40.0, "roofline": 40.0,
    "end-to-end": 90.0,
}  # fmt: skip
"""For the items of each part; all parts together, with start and drawing, end within 8 minutes."""
LEAST_SECONDS = 10.0
"""An item with less time than this is not begun."""
NEEDED = ("torch", "triton", "transformers")
Result = dict[str, Any]


class ReportError(Exception):
    """Nothing can be measured here; says why and what to do."""


# ---------------------------------------------------------------- the items, each in a child
def item_names(part: str) -> tuple[str, ...]:
    """The items of a part, the quick ones first."""
    if part == "tests":
        from labkit.gpu.checks import CHECKS

        return tuple(CHECKS)
    if part == "decode":
        from labkit.gpu.decode import SHAPES

        return tuple(SHAPES)
    if part == "smoke":
        from labkit.gpu.smoke import FEATURES

        return tuple(FEATURES)
    if part == "end-to-end":
        return ("ceilings", "mini_vllm", "hf_continuous", "hf")
    from labkit.kernels.cases import SPECS

    return tuple(SPECS)


PARTS = tuple(PART_SECONDS)


def do_item(part: str, name: str, seconds: float) -> Result:
    """Run one item in this process. A key "wrong" says that something does not hold."""
    if part == "machine":
        return describe_machine()
    if part == "tests":
        from labkit.gpu import checks as gpu_checks

        return dict(gpu_checks.run(name))
    if part == "decode":
        from labkit.gpu import decode
        from labkit.kernels.measure import gpu_timing

        return decode.measure(name, gpu_timing.measure_ceilings()["bandwidth"])
    if part == "smoke":
        from labkit.gpu import smoke

        return smoke.run(name)
    if part == "kernels":
        return check_kernel(name)
    if part == "roofline":
        return time_kernel(name)
    if name == "ceilings":
        from labkit.kernels.measure import gpu_timing

        return dict(gpu_timing.measure_ceilings())
    from labkit.gpu import workload as end_to_end

    # A minute to load, and to come to an end.
    return end_to_end.measure(name, max(seconds - 60, seconds / 2))


def describe_machine() -> Result:
    """What ran, for the report's head.

    Raises:
        ReportError: torch finds no CUDA device.
    """
    from importlib import metadata

    import torch

    if not torch.cuda.is_available():
        raise ReportError(
            "gpu-report needs a CUDA device, and torch finds none here; nothing was run and nothing"
            " was written. `make check-kernel KERNEL=all` judges kernels without a GPU"
        )
    device = torch.cuda.get_device_properties(0)
    return {
        "gpu": device.name,
        "capability": f"{device.major}.{device.minor}",
        "memory_gib": round(device.total_memory / 2**30, 1),
        "processors": device.multi_processor_count,
        "cuda": torch.version.cuda,
        "python": ".".join(map(str, sys.version_info[:3])),
        **{name: metadata.version(name) for name in NEEDED},
    }


def engine_file(module: str) -> Path:
    """Where the engine's own kernels are, whatever a learner has in labs/."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def check_kernel(name: str) -> Result:
    """All stages of CPU mode; then cases, proof and sanitizer on the GPU."""
    from labkit.kernels.cases import SPECS
    from labkit.kernels.check import Checker
    from labkit.kernels.measure import gpu
    from labkit.kernels.watch.extract import Submission, extract

    spec = SPECS[name]
    file = engine_file(spec.module)
    with Checker(ROOT, workers=min(8, max(2, (os.cpu_count() or 2) // 2))) as checker:
        cpu = checker.check(name, file, seed=SEED)
    stages = [[stage.name, stage.status, stage.text] for stage in cpu.stages]
    result: Result = {"cpu": cpu.status, "stages": stages, "score": cpu.score}
    wrong = [finding.message for finding in cpu.findings]
    submission = extract(file.read_text("utf-8"), spec, spec.module)
    if isinstance(submission, Submission):
        found, seen = gpu.measure_kernel(submission, spec, SEED, ("case", "proof", "sanitizer"))
        wrong += [finding.message for finding in found]
        result |= {
            "cases": [
                [c["case"], not c["findings"], len(c["skipped"])] for c in seen.get("case", [])
            ],
            "proof": sorted({kernel for p in seen.get("proof", []) for kernel in p["kernels"]}),
            "sanitizer": seen["sanitizer"],
        }
    return result | ({"wrong": "; ".join(wrong[:5])} if wrong else {})


def time_kernel(name: str) -> Result:
    """The rows of the roofline table that belong to one kernel."""
    from labkit.kernels.cases import SPECS
    from labkit.kernels.measure import gpu
    from labkit.kernels.watch.extract import Submission, extract

    spec = SPECS[name]
    submission = extract(engine_file(spec.module).read_text("utf-8"), spec, spec.module)
    assert isinstance(submission, Submission), submission
    found, seen = gpu.measure_kernel(submission, spec, SEED, ("timing",))
    wrong = {"wrong": "; ".join(finding.message for finding in found)} if found else {}
    return {"rows": seen.get("timing", [])} | wrong


# ---------------------------------------------------------------- running items within a budget
def run_child(part: str, name: str, seconds: float) -> Result:
    """One item in a process that is ended after `seconds`; its result comes back in a file."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        words = ["-m", "labkit.gpu.report", "--item", part, name, str(seconds), str(file)]
        # A machine that is rented by the hour: the clock counts.
        limits = child.Limits(seconds, memory_mb=0, file_mb=4096, wall_times=1)
        done = child.run(words, env, limits, ROOT)
        if file.exists():
            return dict(json.loads(file.read_text("utf-8")))
    if done.timed_out:
        return {"cut": f"ended after {done.seconds:.0f} s"}
    last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
    return {"wrong": f"ended with code {done.code}: {last}"}


def run_part(
    part: str,
    names: Sequence[str],
    run: Callable[[str, str, float], Result],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Result]:
    """Run items one after another until the time is up; those not begun are "cut" too."""
    begin, results = clock(), dict[str, Result]()
    for name in names:
        left = seconds - (clock() - begin)
        if left < LEAST_SECONDS:
            results[name] = {"cut": "not begun: the part's time was up"}
        else:
            at = clock()
            results[name] = run(part, name, left)
            # Not "seconds": an item says so itself how long what it measures has taken.
            results[name]["wall_seconds"] = round(clock() - at, 1)
        print(f"  {outcome(results[name]):5} {part} / {name}", flush=True)
    return results


def outcome(result: Mapping[str, Any]) -> str:
    """ "wrong", "cut", or "done"."""
    return next((word for word in ("wrong", "cut") if word in result), "done")


# ---------------------------------------------------------------- the document
@dataclass(frozen=True)
class Run:
    """The items of one part that were run together, and where."""

    part: str
    machine: Result
    items: dict[str, Result]
    when: str
    commit: str


def merge(document: Mapping[str, Any], run: Run, only: bool = False) -> Result:
    """A document in which the run's part is the new one; all other parts stay.

    With `only` the part's other items stay too: then each item says when it was measured.

    Raises:
        ReportError: the document is of another GPU or another schema.
    """
    if document and document.get("schema") != SCHEMA:
        raise ReportError(
            f"report.json has schema {document.get('schema')!r}, this labkit writes {SCHEMA};"
            " move it away, then run all parts again"
        )
    if document and document["gpu"] != run.machine["gpu"]:
        raise ReportError(
            f"report.json is of {document['gpu']}, this GPU is {run.machine['gpu']};"
            " use another --out"
        )
    stamp = {"when": run.when, "commit": run.commit, "machine": run.machine}
    items = {name: result | stamp for name, result in run.items.items()}
    parts = dict(document.get("parts", {}))
    parts[run.part] = parts.get(run.part, {}) | items if only else items
    return {"schema": SCHEMA, "gpu": run.machine["gpu"], "parts": parts}


def slug(gpu: str) -> str:
    """A folder's name for a GPU: "NVIDIA H100 80GB HBM3" -> "h100-80gb-hbm3"."""
    words = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return words.removeprefix("nvidia-")


def load(folder: Path) -> Result:
    file = folder / "report.json"
    return dict(json.loads(file.read_text("utf-8"))) if file.exists() else {}


def save(folder: Path, document: Mapping[str, Any]) -> list[Path]:
    """Write the document and what is drawn from it; the files written."""
    from labkit.course.files import write_text
    from labkit.gpu import render as gpu_render

    write_text(folder / "report.json", json.dumps(document, indent=1) + "\n")
    write_text(folder / "report.md", gpu_render.markdown(document))
    written = [folder / "report.json", folder / "report.md"]
    try:
        gpu_render.draw(document, folder / "report.png")
        written.append(folder / "report.png")
    except ImportError:
        print(
            "no matplotlib here, so report.png is not drawn; on a machine that has it run\n"
            f"  python -m labkit gpu-report --render {folder}"
        )
    return written


def commit() -> str:
    """The checkout's commit, with "+" if files differ from it; "unknown" without git."""
    try:
        words = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


# ---------------------------------------------------------------- the command
def main(argv: Sequence[str]) -> int:
    """0 if everything that was asked for ran and holds; 1 if something is wrong, cut or missing."""
    options = parse(argv)
    try:
        if options.render:
            return render(Path(options.render))
        return report(options)
    except ReportError as error:
        print(error, file=sys.stderr)
        return 1


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="labkit gpu-report", description="Measure this GPU.")
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all of them")
    parser.add_argument("--only", action="append", metavar="ITEM", help="only these items")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/GPU")
    parser.add_argument("--seconds", type=float, help="of each part, instead of its own")
    parser.add_argument("--render", metavar="FOLDER", help="draw Markdown and PNG from report.json")
    return parser.parse_args(argv)


def render(folder: Path) -> int:
    document = load(folder)
    if not document:
        raise ReportError(f"there is no {folder / 'report.json'} to draw")
    for file in save(folder, document):
        print(f"wrote {file}")
    return 0


def report(options: argparse.Namespace) -> int:
    """Run the parts, and save after each: what was measured is not lost with what comes later."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ReportError(
            f"gpu-report needs {', '.join(NEEDED)}; this Python ({sys.executable}) has no"
            f" {', '.join(missing)}. Install them, or run `make setup` and then `make gpu-report`"
        )
    begin = time.monotonic()
    machine = run_child("machine", "", 120)
    if "gpu" not in machine:
        raise ReportError(machine.get("wrong") or machine.get("cut") or "no answer from torch")
    folder = options.out or RESULTS / slug(machine["gpu"])
    print(f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}")
    outcomes, spent = [], time.monotonic() - begin  # by looking: the first part pays for it
    for part in options.part or PARTS:
        names = chosen(part, options.only)
        seconds = options.seconds or PART_SECONDS[part]
        print(f"{part}: {len(names)} items, at most {seconds:.0f} s")
        items = run_part(part, names, run_child, seconds - spent)
        spent = 0.0
        when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        run = Run(part, machine, items, when, commit())
        written = save(folder, merge(load(folder), run, bool(options.only)))
        outcomes += [outcome(result) for result in items.values()]
    print("\n".join(f"wrote {file}" for file in written))
    counts = ", ".join(f"{outcomes.count(word)} {word}" for word in ("done", "wrong", "cut"))
    print(counts)
    return 0 if set(outcomes) == {"done"} else 1


def chosen(part: str, only: Sequence[str] | None) -> tuple[str, ...]:
    """The items of a part that were asked for.

    Raises:
        ReportError: none of them is an item of this part.
    """
    names = item_names(part)
    wanted = tuple(name for name in names if only is None or name in only)
    if not wanted:
        raise ReportError(
            f"{part} has no item {' or '.join(only or [])}; it has {', '.join(names)}"
        )
    return wanted


def item_main(part: str, name: str, seconds: str, file: str) -> int:
    """In the child: do the item and write its result."""
    try:
        result = do_item(part, name, float(seconds))
    except ReportError as error:
        result = {"wrong": str(error)}
    Path(file).write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--item"]:
        raise SystemExit(item_main(*sys.argv[2:]))
    raise SystemExit(main(sys.argv[1:]))
