"""`python -m labkit dot-product`: judges the C++ file of phase 09's stretch task.

It is built with this machine's compiler, together with `dot_product.cpp`, which calls it: by a
program of its own, because a wrong load ends the process. Judged are

    answers         equal to numpy's, of all cases of `cases`
    instructions    that a call executes for 64 numbers, beside those of a plain loop

Instructions are counted, not estimated: the caller steps through a call one by one. Seconds are
never judged; `benchmarks/dot_int8.py` shows them.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer

from labkit.course.console import Screen, polite
from labkit.course.root import ROOT
from labkit.inside.timeouts import Patience, until_ended
from mini_vllm.kernels.native import COMPILERS

HARNESS = Path(__file__).with_name("dot_product.cpp")
SKELETON = ROOT / "phases/09-quantization/dot_int8.cpp"
FILE = ROOT / "labs/09-quantization/dot_int8.cpp"
FLAGS = ("-std=c++17", "-O2", "-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-march=native")
"""The compiler may not turn a loop into vectors by itself: then step 1 would be step 3."""
BUILD_SECONDS, RUN_SECONDS = 120, 30
STEPS = ("dot_scalar", "dot_unrolled", "dot_vector")
MOST = (None, 0.8, 0.4)
"""Instructions of each step, as a share of a plain loop's, at most."""
MOST_NUMBERS = (1 << 17) - 2
ADVICE = {
    "lengths": "Does your loop take each number once, those that fill no whole turn, too?",
    "extremes": "-128 * -128 is 16,384: two of them leave 16 bits. And 8 bits have no 128.",
    "random": "Small numbers come out right. Which of your sums may leave its bits?",
    "crash": "An array ends where its memory ends, and begins at any address.",
    "count": "Count what a turn of your loop does, and for how many numbers.",
}
"""What to think of first, by the kind of the first failure."""


class NotHere(Exception):
    """This machine cannot build or count; the message says why."""


@dataclass(frozen=True)
class Case:
    """Two arrays, and how many bytes of memory follow each."""

    kind: str
    what: str
    a: np.ndarray
    b: np.ndarray
    gaps: tuple[int, int] = (0, 0)

    @property
    def right(self) -> int:
        return int(self.a.astype(np.int32) @ self.b.astype(np.int32))


@dataclass(frozen=True)
class Verdict:
    """Of one step: what is wrong, if anything, and what was counted."""

    step: str
    num_cases: int = 0
    kind: str = ""
    problem: str = ""
    per_64: float | None = None
    plain: float | None = None


def cases(seed: int) -> Iterator[Case]:
    """All lengths up to 130, places in memory, extreme numbers, and arrays of many numbers."""
    rng = np.random.default_rng(seed)

    def some(n: int, low: int = -128, high: int = 127) -> np.ndarray:
        return rng.integers(low, high + 1, n, dtype=np.int8)

    for n in [*range(131), 255]:
        gaps = (int(rng.integers(64)), int(rng.integers(64)))
        what = f"{n} small number{'s' * (n != 1)}"
        yield Case("lengths", what, some(n, -9, 9), some(n, -9, 9), gaps)
    for x in (-128, -1, 127):
        for y in (-128, 127):
            for n in (2, 64, 77, 4096, MOST_NUMBERS):
                a, b = np.full(n, x, np.int8), np.full(n, y, np.int8)
                yield Case("extremes", f"{n:,} times {x} * {y}", a, b)
    for n in (1, 31, 63, 64, 65, 100, 1000, 4096, MOST_NUMBERS):
        yield Case("random", f"{n:,} random numbers", some(n), some(n))


def compiler() -> str:
    """Raises NotHere if there is none."""
    found = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)
    if found is None or platform.system() == "Windows":
        names = ", ".join(COMPILERS)
        raise NotHere(f"there is no C++ compiler here ({names}, or $CXX), so nothing was judged")
    return found


def build(file: Path, folder: Path, *flags: str) -> Path:
    """The program with `file` in it.

    Raises ValueError with the compiler's first error; NotHere if there is no compiler.
    """
    command = [*shlex.split(compiler()), *FLAGS, *flags, "-o", str(folder / "dot")]
    command += [str(HARNESS), str(file)]
    done = completed(command, BUILD_SECONDS)
    if done.returncode:
        lines = done.stderr.splitlines() or [f"{command[0]} failed"]
        raise ValueError(next((line for line in lines if "error:" in line), lines[-1]))
    return folder / "dot"


def judge(file: Path, seed: int = 0, *flags: str) -> list[Verdict]:
    """The three steps of `file`. Raises ValueError if it cannot be built, NotHere as `build`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        program = build(file, folder, *flags)
        counts = count(program)
        return [
            judge_step(program, folder, number, list(cases(seed)), counts)
            for number in range(1, len(STEPS) + 1)
        ]


def judge_step(
    program: Path, folder: Path, number: int, tried: list[Case], counts: list[float | None]
) -> Verdict:
    step, most = STEPS[number - 1], MOST[number - 1]
    kind, problem = first_wrong(program, folder, number, tried)
    plain, own = counts[0], counts[number]
    if problem or plain is None or own is None:
        return Verdict(step, len(tried), kind, problem)
    if most is not None and own > most * plain:
        kind, problem = "count", (
            f"{own:.0f} instructions for 64 numbers; a plain loop has {plain:.0f}, and at most "
            f"{most:.0%} of it, {most * plain:.0f}, are wanted"
        )  # fmt: skip
    return Verdict(step, len(tried), kind, problem, own, plain)


def first_wrong(program: Path, folder: Path, number: int, tried: list[Case]) -> tuple[str, str]:
    """Kind and description of the first case that goes wrong; two empty texts if none does."""
    file = folder / "cases"
    with file.open("wb") as out:
        for case in tried:
            out.write(np.array([number, len(case.a), *case.gaps], np.int64).tobytes())
            out.write(case.a.tobytes() + case.b.tobytes())
    try:
        done = run(program, "check", str(file))
    except subprocess.TimeoutExpired:
        return "lengths", f"no end after {RUN_SECONDS} s: does your loop move on?"
    answers = [int(line) for line in done.stdout.splitlines()]
    for case, answer in zip(tried, answers, strict=False):
        if answer != case.right:
            return case.kind, f"{case.what}: {answer:,}, and {case.right:,} is right"
    if done.returncode:
        case = tried[min(len(answers), len(tried) - 1)]
        places = " and ".join(map(str, case.gaps))
        return "crash", (
            f"{case.what}, with {places} bytes of memory behind a and b: signal "
            f"{-done.returncode} ended the program. It read what is not there, or loaded from an "
            "address that its instruction does not take"
        )  # fmt: skip
    return "", ""


def count(program: Path) -> list[float | None]:
    """Instructions for 64 numbers, of a plain loop and of each step; None where nothing is counted.

    The difference between two lengths: what a call does once, in front and behind, drops out.
    """
    try:
        done = run(program, "count")
    except subprocess.TimeoutExpired:
        return [None] * (1 + len(STEPS))
    pairs = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    return [None if min(pair) < 0 else (pair[1] - pair[0]) / (1024 / 64) for pair in pairs]


def run(
    program: Path, *words: str, seconds: float = RUN_SECONDS
) -> subprocess.CompletedProcess[str]:
    return completed([str(program), *words], seconds)


def completed(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end.

    Raises:
        subprocess.TimeoutExpired: it computed or slept for longer.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        patience = Patience(seconds, process.pid)
        try:
            out, err = until_ended(lambda most: process.communicate(timeout=most), patience)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@polite
def main(
    file: Path = typer.Argument(FILE, help="your C++ file; begun from the skeleton if missing"),
    seed: int = typer.Option(0, "--seed", help="other random numbers"),
) -> None:
    """A dot product of int8, from a loop to whole registers: answers and counted instructions."""
    out = Screen()
    if not file.exists():
        file.write_text(SKELETON.read_text("utf-8"), "utf-8")
        out.line(f"{file.name} has been begun in {file.parent}: fill in its three functions")
    try:
        verdicts = judge(file, seed)
    except NotHere as reason:
        out.line(f"skipped: {reason}", "yellow")
        return
    except ValueError as error:
        out.line(f"✗ it cannot be built: {error}", "red")
        raise typer.Exit(1) from None
    unwritten = untouched(file)
    for verdict in verdicts:
        if verdict.step in unwritten:
            out.line(f"○ {verdict.step}: not written yet", "dim")
        else:
            show(out, verdict)
    if any(verdict.problem for verdict in verdicts):
        raise typer.Exit(1)


def untouched(file: Path) -> set[str]:
    """The steps that are still as the skeleton has them."""
    text = file.read_text("utf-8")
    bodies = re.findall(rf"\b({'|'.join(STEPS)})\([^)]*\) {{\n    return 0;  // TODO\n", text)
    return set(bodies)


def show(out: Screen, verdict: Verdict) -> None:
    if verdict.problem:
        out.line(f"✗ {verdict.step}: {verdict.problem}", "red")
        out.line(ADVICE[verdict.kind], "dim", 2)
        return
    counted = "instructions cannot be counted here (Linux only, and a sandbox may forbid it)"
    if verdict.per_64 is not None:
        counted = (
            f"{verdict.per_64:.0f} instructions for 64 numbers, a plain loop {verdict.plain:.0f}"
        )
    out.line(f"✓ {verdict.step}: right in {verdict.num_cases} cases; {counted}", "green")
