"""`make doctor`: every thing the project needs, one line each, with the fix for what is missing.

    [ok]   fine          [warn] works, with something left out          [FAIL] must be fixed first

Runs on a bare Python. What torch, triton and transformers can do is asked in a child process of the
environment's interpreter (`labkit.setup.facts`), so that a broken install is a line and not a
traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.course.root import ROOT, upstream_root
from labkit.setup.pythons import Interpreter, probe
from labkit.setup.requirements import DEFAULT_GROUPS, PYTHONS, installed, missing, requirements
from labkit.setup.venv import Venv

GIB = 2**30
COLOURS = {"ok": "32", "warn": "33", "FAIL": "31"}
MODEL = ROOT / "mini_vllm" / "bundled" / "storyteller"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    status: str  # ok, warn or FAIL
    name: str
    detail: str
    fix: str = ""


def main(argv: Sequence[str]) -> int:
    """Print the report; 0 when nothing fails."""
    parser = argparse.ArgumentParser(prog="labkit doctor", description=main.__doc__)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(argv)
    findings = []
    for finding in examine():
        findings.append(finding)
        if not options.json:
            show(finding)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        print(summary(findings))
    return int(any(finding.status == "FAIL" for finding in findings))


def show(finding: Finding) -> None:
    """One line, and the fix below it. Colour only on a terminal."""
    mark = f"[{finding.status}]"
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        mark = f"\033[{COLOURS[finding.status]}m{mark}\033[0m" + " " * (6 - len(mark))
    print(f"{mark:<6} {finding.name:<14} {finding.detail}")
    if finding.fix:
        print(f"       {'':<14} fix: {finding.fix}", flush=True)


def summary(findings: Sequence[Finding]) -> str:
    """How many of each, and what to type next."""
    count = {status: sum(f.status == status for f in findings) for status in COLOURS}
    text = f"{count['ok']} ok, {count['warn']} warnings, {count['FAIL']} failures."
    return text + (" Fix the failures first." if count["FAIL"] else " Next: `make demo`.")


def examine() -> Iterator[Finding]:
    """All findings, cheap ones first."""
    interpreter = find_interpreter()
    yield python(interpreter)
    yield environment(interpreter)
    facts = ask(interpreter.path)
    gpu = nvidia()
    yield torch(facts["torch"], gpu)
    yield graphics(facts["torch"], gpu)
    yield triton(facts["triton"], sys.platform)
    yield transformers(facts["transformers"])
    yield tools(interpreter)
    yield jupyter(interpreter)
    yield from (disk(), writable(), cores(), memory())
    yield from (program("git", "for `make update` and your history"), program("make", NO_MAKE))
    yield compiler(gpu is not None)
    yield kernels(facts["kernels"])
    yield model(MODEL)
    yield upstream()


MPS_CHECK = "python3 -m pytest tests/engine/platforms -k mps -rA"
NO_MAKE = "without it type `python3 -m labkit TARGET` in place of `make TARGET`"


# ---------------------------------------------------------------- the environment
def find_interpreter() -> Interpreter:
    """The Python that commands will run in: .venv where it is complete, else this one."""
    venv = Venv()
    names = [need.name for need in requirements((*DEFAULT_GROUPS, "notebook"))]
    here = Interpreter(sys.executable, sys.version_info[:3], installed(names))
    course = requirements(("engine", "course"))
    if missing(course, here.packages) and venv.groups():
        return probe(str(venv.python), names) or here
    return here


def python(found: Interpreter) -> Finding:
    if not found.supported:
        return Finding("FAIL", "Python", str(found), f"install {PYTHONS}")
    return Finding("ok", "Python", str(found))


def environment(found: Interpreter) -> Finding:
    """Whether the engine and the course have their packages, in .venv or as they are."""
    lacking = missing(requirements(("engine", "course")), found.packages)
    if lacking:
        names = ", ".join(need.text for need in lacking)
        return Finding("FAIL", "environment", f"lacks {names}", "make setup")
    where = ".venv" if Path(found.path) == Venv().python else "this Python, used as it is"
    return Finding("ok", "environment", where)


def tools(found: Interpreter) -> Finding:
    lacking = missing(requirements(("dev",)), found.packages)
    if lacking:
        names = ", ".join(need.name for need in lacking)
        return Finding("warn", "test tools", f"`make test` lacks {names}", "make setup")
    return Finding("ok", "test tools", "pytest, hypothesis, ruff, mypy, import-linter")


def jupyter(found: Interpreter) -> Finding:
    version = found.packages.get("jupyterlab")
    later = "not installed; `make notebook-00` installs it when you want it"
    return Finding("ok", "Jupyter", f"jupyterlab {version}" if version else later)


# ---------------------------------------------------------------- what it can do
def ask(interpreter: str) -> dict[str, dict[str, Any]]:
    """`labkit.setup.facts` from a child of the interpreter; an error for each if the child dies."""
    command = [interpreter, "-m", "labkit.setup.facts"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=180)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        error, fix = "no answer within 180 s", "close other programs, and run `make doctor` again"
    except (OSError, ValueError, IndexError):
        error, fix = "the interpreter ended without an answer", "make setup"
    names = ("torch", "triton", "transformers", "kernels")
    return {name: {"error": error, "fix": fix} for name in names}


def torch(facts: Mapping[str, Any], gpu: str | None) -> Finding:
    if "error" in facts:
        return Finding("FAIL", "torch", facts["error"], facts.get("fix", "make setup"))
    build = f"CUDA {facts['cuda']}" if facts["cuda"] else "CPU build"
    text = f"{facts['version']} ({build})"
    if gpu and not facts["cuda"]:
        fix = "remove .venv and run `make setup`: it takes the CUDA build where nvidia-smi is"
        return Finding("warn", "torch", f"{text}, although there is a GPU", fix)
    return Finding("ok", "torch", text)


def nvidia() -> str | None:
    """`name, driver version` of the first GPU by nvidia-smi; None without a working driver."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None


def graphics(facts: Mapping[str, Any], gpu: str | None) -> Finding:
    """What torch sees, beside what the driver sees."""
    seen = facts.get("gpu")
    if seen:
        text = f"{seen['count']} x {seen['name']}, {seen['memory_gib']} GiB, "
        driver = f", driver {gpu.split(', ')[-1]}" if gpu else ""
        return Finding("ok", "GPU", f"{text}compute capability {seen['capability']}{driver}")
    if gpu:
        fix = "compare the driver with the CUDA version of the torch line above"
        return Finding("warn", "GPU", f"{gpu}, but torch does not see it", fix)
    if facts.get("mps"):
        fix = f"none is needed: the CPU is taken; `{MPS_CHECK}` tries the GPU beside it"
        return Finding("warn", "GPU", 'Apple\'s; `device="mps"` was never seen to run', fix)
    return Finding("ok", "GPU", "none; the CPU is enough, and GPU tiers say `not run`")


def triton(facts: Mapping[str, Any], system: str) -> Finding:
    if "error" in facts:
        if system != "linux":
            return Finding("ok", "triton", "not available off Linux; kernels use their torch twins")
        return Finding("FAIL", "triton", facts["error"], facts.get("fix", "make setup"))
    if not facts["interpreter"]:
        fix = "make setup; if it stays, report it with `make doctor ARGS=--json`"
        return Finding("FAIL", "triton", f"{facts['version']}: its interpreter adds wrongly", fix)
    return Finding("ok", "triton", f"{facts['version']}, interpreter works")


def transformers(facts: Mapping[str, Any]) -> Finding:
    if "error" in facts:
        return Finding("FAIL", "transformers", facts["error"], facts.get("fix", "make setup"))
    return Finding("ok", "transformers", facts["version"])


# ---------------------------------------------------------------- the machine
def disk() -> Finding:
    free = shutil.disk_usage(ROOT).free / GIB
    text = f"{free:.1f} GiB free"
    if free < 1:
        return Finding("FAIL", "disk", text, "free at least 1 GiB")
    if free < 4 and not Venv().groups():
        return Finding("warn", "disk", text, "set-up wants about 4 GiB")
    return Finding("ok", "disk", text)


def writable() -> Finding:
    if os.access(ROOT, os.W_OK):
        return Finding("ok", "folder", f"{ROOT} is writable")
    fix = "copy the repository to a folder of yours, to edit labs"
    return Finding("warn", "folder", f"{ROOT} is read-only", fix)


def cores() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("ok", "cores", f"{count} ({platform.machine()})")


def memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # a container may have less than the machine
    text = limit.read_text().strip() if limit.exists() else "max"
    total = min(total, int(text)) if text.isdigit() else total
    if total < 4 * GIB:
        return Finding("warn", "memory", f"{total / GIB:.1f} GiB", "4 GiB and more run everything")
    return Finding("ok", "memory", f"{total / GIB:.1f} GiB")


def program(name: str, use: str) -> Finding:
    path = shutil.which(name)
    if path:
        return Finding("ok", name, path)
    return Finding("warn", name, "not found", f"install {name}: {use}")


def compiler(has_gpu: bool) -> Finding:
    """Triton compiles a small launcher on a GPU machine."""
    path = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if path:
        return Finding("ok", "C compiler", path)
    if has_gpu:
        return Finding("warn", "C compiler", "not found", "install gcc: Triton needs it on a GPU")
    return Finding("ok", "C compiler", "not found, and not needed without a GPU")


def kernels(facts: Mapping[str, Any]) -> Finding:
    """The engine's kernels in C++, which it builds for this processor the first time it runs."""
    if "error" in facts:
        return Finding("warn", "C++ kernels", facts["error"], facts.get("fix", "make setup"))
    if facts["built"]:
        return Finding("ok", "C++ kernels", f"built, in {facts['folder']}")
    if "without" not in facts:
        return Finding("ok", "C++ kernels", f"switched off: {facts['why']}")
    fix = "install g++ (on a Mac: `xcode-select --install`), then run `make doctor` again"
    return Finding("warn", "C++ kernels", f"{facts['without']}: {facts['why']}", fix)


# ---------------------------------------------------------------- the repository
def model(folder: Path) -> Finding:
    weights = folder / "model.safetensors"
    if not (weights.exists() and (folder / "config.json").exists()):
        fix = f"git restore {folder.relative_to(ROOT)}"
        return Finding("FAIL", "bundled model", f"{weights.relative_to(ROOT)} is missing", fix)
    size = weights.stat().st_size / 2**20
    return Finding("ok", "bundled model", f"{folder.name}, {size:.1f} MiB")


def upstream() -> Finding:
    found = upstream_root(ROOT)
    if found is None:
        return Finding(
            "warn", "vLLM source", "not fetched; only the deep dives use it", "make upstream"
        )
    return Finding("ok", "vLLM source", str(found))
