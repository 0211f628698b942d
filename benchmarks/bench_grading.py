"""What grading costs: CPU time of one grade, phase by phase, and of a whole class.

    python -m benchmarks.bench_grading                        every ready phase, once
    python -m benchmarks.bench_grading --phases 00 03 --save
    python -m benchmarks.bench_grading --phases --students 100 --save

One grade is that of the reference, which every hidden test runs to its end; another that of the
skeletons, which fails every test. Their processes are plain children, since the CPU time of a
process in a namespace is not its starter's to read; what a sandbox adds is measured apart, as the
time until a worker answers on each rung that works here.

The class hands in phase 00: of 100 submissions 10 are broken, each in its own way; the others are
right, unfinished, or wrong by a named mistake. It counts as done when every submission has a result
and the broken ones, and no others, are named.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench_scheduler import machine
from labkit.course.files import write_text
from labkit.course.manifest import Course, Phase
from labkit.course.root import find_root
from labkit.course.skeleton import skeleton
from labkit.grading import batch, grade, result
from labkit.inside import child
from labkit.judge import mistakes
from labkit.process.worker import Worker
from labkit.sandbox import build as sandbox
from labkit.sandbox.isolation import LADDER

ROOT = find_root()
SAVED = ROOT / "benchmarks" / "results" / "grading.json"
SEED = 20260101
STARTS = 5
BODY = "        return status > RequestStatus.PREEMPTED\n"
"""The body of `is_finished` in the reference, which most broken submissions replace."""
BROKEN: dict[str, str | bytes | None] = {
    "syntax": "def broken(:\n",
    "missing": None,
    "binary": b"\x7fELF\x00\x01\x02\xff\xfe",
    "empty": "",
    "import": "import no_such_module\n",
    "loop": "while True: pass",
    "exit": "__import__('os')._exit(0)",
    "memory": "return [0] * 10**11",
    "crash": "__import__('ctypes').string_at(0)",
    "killer": "__import__('os').abort()",
}
"""How a submission is broken -> its whole file, a body of `is_finished`, or no file at all."""
COLUMNS = ("tests", "cpu_seconds", "skeleton_cpu_seconds")
BODIES = ("loop", "exit", "memory", "crash", "killer")


def main(argv: Sequence[str]) -> int:
    """Measure and print; see the module's docstring."""
    parser = argparse.ArgumentParser("bench_grading", description=(__doc__ or "").splitlines()[0])
    ready = [phase.number for phase in Course(ROOT).ready]
    parser.add_argument("--phases", nargs="*", default=ready, help="default: every ready one")
    parser.add_argument("--students", type=int, default=0, help="grade a class of so many, too")
    parser.add_argument("--jobs", type=int, default=1, help="submissions of the class at a time")
    parser.add_argument("--save", action="store_true", help=f"update {SAVED.relative_to(ROOT)}")
    options = parser.parse_args(argv)
    facts: dict[str, Any] = {"machine": machine()}
    for number in options.phases:
        phase = Course(ROOT).phase(number)
        facts.setdefault("phases", {})[phase.slug] = measure(phase)
        print(json.dumps({phase.slug: facts["phases"][phase.slug]}), flush=True)
        keep(facts, options.save)
    if options.phases:
        facts["start_seconds"] = starts(Course(ROOT).phase("00"))
    if options.students:
        facts["class"] = measure_class(options.students, options.jobs)
    print(report(keep(facts, options.save)))
    return 0 if facts.get("class", {}).get("as_expected", True) else 1


def keep(facts: Mapping[str, Any], save: bool) -> dict[str, Any]:
    """What was measured now; with `save` also what was saved before and not measured again, and all
    of it is saved."""
    if not save:
        return dict(facts)
    old = json.loads(SAVED.read_text(encoding="utf-8")) if SAVED.exists() else {}
    phases = old.get("phases", {}) | facts.get("phases", {})
    found = old | dict(facts) | ({"phases": phases} if phases else {})
    write_text(SAVED, json.dumps(found, indent=1) + "\n")
    return found


# ---------------------------------------------------------------- one grade
def measure(phase: Phase) -> dict[str, Any]:
    """Grade the reference of a phase once, and the skeletons.

    Raises:
        ValueError: the reference does not get all points, or a skeleton gets some, so the figures
            would mean nothing.
    """
    files = {module: phase.reference_file(module) for module in phase.modules}
    graded, cpu = _timed(phase, files)
    if not graded.passed:
        failed = [f"{group.id} {group.kind}" for group in graded.groups if group.kind]
        what = graded.problem or ", ".join(failed)
        raise ValueError(f"the reference of phase {phase.number} fails: {what}")
    with tempfile.TemporaryDirectory() as folder:
        for module in phase.modules:
            files[module] = Path(folder, phase.lab_file(module).name)
            files[module].write_text(skeleton(phase, module), encoding="utf-8")
        unfinished, skeleton_cpu = _timed(phase, files)
    if unfinished.earned or unfinished.problem:
        raise ValueError(f"the skeletons of phase {phase.number}: {unfinished.problem or 'points'}")
    return {
        "tests": len(graded.tests),
        "cpu_seconds": round(cpu, 1),
        "skeleton_cpu_seconds": round(skeleton_cpu, 1),
    }


def _timed(phase: Phase, files: Mapping[str, Path]) -> tuple[result.GradeResult, float]:
    """One grade, and its CPU seconds."""
    before = _cpu()
    graded = grade.grade_files(phase, files, SEED, "plain")
    return graded, _cpu() - before


def _cpu() -> float:
    """CPU seconds of this process and of all its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def starts(phase: Phase) -> dict[str, float]:
    """Rung -> seconds until a fresh worker has answered, the best of a few, where it works here."""
    files = {module: phase.reference_file(module).read_bytes() for module in phase.modules}
    found = {}
    for name, rung in LADDER.items():
        try:
            sandbox.choose_rung(phase, name)
        except ValueError:
            continue
        taken = []
        for _ in range(STARTS):
            begin = time.monotonic()
            box = sandbox.Sandbox(phase, files, rung)
            with Worker(phase.root, {}, child.Limits(60), "bench", box) as worker:
                worker.call("labkit.inside.basic:ping")
                taken.append(time.monotonic() - begin)
        found[name] = round(min(taken), 2)
    return found


# ---------------------------------------------------------------- a class
def measure_class(number: int, jobs: int) -> dict[str, Any]:
    """Grade a class of phase 00 with the command that an instructor types."""
    phase = Course(ROOT).phase("00")
    with tempfile.TemporaryDirectory() as folder:
        hand_in(Path(folder, "in"), students(phase, number))
        out = Path(folder, "out")
        words = ["grade-class", "00", str(Path(folder, "in")), "--out", str(out)]
        words += ["--seed", str(SEED), "--jobs", str(jobs)]
        begin = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "labkit", *words], cwd=ROOT, env=os.environ)
        seconds = time.monotonic() - begin
        results = {path.stem: result.load(path) for path in out.glob("*.json")}
    named = sorted(name for name, graded in results.items() if batch.why_broken(graded))
    rungs = sorted({graded.isolation for graded in results.values()})
    whole = done.returncode == 0 and len(results) == number
    return {
        "submissions": number,
        "jobs": jobs,
        "wall_seconds": round(seconds),
        "passed": sum(graded.passed for graded in results.values()),
        "named_as_broken": named,
        "isolation": rungs,
        "as_expected": whole and set(named) == {f"broken-{kind}" for kind in BROKEN},
    }


def students(phase: Phase, number: int) -> dict[str, str | bytes | None]:
    """Name -> the file that she hands in: the broken ones, then right, unfinished and wrong ones in
    turn."""
    module = phase.modules[0]
    reference = phase.reference_file(module).read_text(encoding="utf-8")
    if BODY not in reference:
        raise ValueError(f"{module} has no line {BODY.strip()!r}; change BODY")
    made: dict[str, str | bytes | None] = {}
    for kind, content in BROKEN.items():
        if kind in BODIES:
            content = reference.replace(BODY, f"        {content}\n")
        made[f"broken-{kind}"] = content
    others = [reference, skeleton(phase, module), *(m.text for m in mistakes.load(phase))]
    for index in range(number - len(made)):
        made[f"student-{index:03}"] = others[index % len(others)]
    return made


def hand_in(folder: Path, files: Mapping[str, str | bytes | None]) -> None:
    """A folder for each student, with her request.py in it."""
    for name, content in files.items():
        (folder / name).mkdir(parents=True)
        if content is not None:
            data = content.encode() if isinstance(content, str) else content
            (folder / name / "request.py").write_bytes(data)


# ---------------------------------------------------------------- the report
def report(facts: Mapping[str, Any]) -> str:
    """The figures as the tables of docs/instructors.md."""
    where = facts["machine"]
    lines = [f"{where['processor']}, {where['cores']} cores, Python {where['python']}", ""]
    lines += ["| phase | hidden tests | CPU s | unfinished, CPU s |", "|---|---|---|---|"]
    for slug, row in sorted(facts.get("phases", {}).items()):
        cells = (slug, *(row.get(key, "") for key in COLUMNS))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for name, seconds in facts.get("start_seconds", {}).items():
        lines.append(f"\na worker on the rung `{name}` answers after {seconds} s")
    if found := facts.get("class"):
        rungs, broken = ", ".join(found["isolation"]), len(found["named_as_broken"])
        lines.append(
            f"\na class of {found['submissions']}, {found['jobs']} at a time, on {rungs}:"
            f" {found['wall_seconds']} s; {found['passed']} passed; {broken} named as broken"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
