"""Does the checker find what it should? `python -m labkit.kernels.proof.selftest [WORD...]`

    bugs        wrong kernels of controls.py, each in one case: is the mistake named by its kind?
    probes      files through a whole check: does it stop where it should, and only there?
    questions   comparisons, guard bands, the timing's doubts: small, with a known answer

With words: only what has one of them as its kind or its name. Exit code 1 if anything escapes.
Every check of the checker is asked for here: `tests/corpora/kernel_corpus/checker.toml` takes them
out one by one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import torch

from labkit.kernels.cases import SPECS, build, cases_of
from labkit.kernels.cases.draw import Case
from labkit.kernels.check import Checker, run_bug
from labkit.kernels.measure import on_gpu, timing
from labkit.kernels.measure.guard import BAND_BYTES, Guarded
from labkit.kernels.verdict import controls, oracles, tolerances
from labkit.kernels.verdict.numbers import differ
from labkit.kernels.verdict.report import CheckResult
from labkit.kernels.watch.extract import reference_source

SEED = 20
SPEC = "silu_mul"  # whose check takes the least time


# ---------------------------------------------------------------- bugs
def escaped(checker: Checker, bugs: tuple[controls.Bug, ...]) -> list[tuple[controls.Bug, str]]:
    """The bugs that are not named by their kind, with what was found instead."""
    missed = []
    for bug in bugs:
        kinds = sorted({finding.kind for finding in run_bug(checker, bug, SEED)})
        if bug.kind not in kinds:
            missed.append((bug, ", ".join(kinds) or "nothing"))
    return missed


# ---------------------------------------------------------------- probes
HEAD = "@triton.jit\ndef silu_mul_kernel("
PARAMETERS = 'TILE: tl.constexpr,\n):\n    """silu'
LOAD_UP = "    up = tl.load(gate_ptr + SIZE"
EXP = "tl.exp(-gate)"
STORE = "* up, mask=inside)"
TYPE = "    half = 0\n    for _ in range(0, token):\n        half = gate * 0.5\n"
WIDE = """    wide = (gate[None, :] + tl.arange(0, 64)[:, None]).to(tl.float16)
    total = tl.dot(wide, tl.trans(wide))
    gate += tl.sum(tl.sum(tl.where(total == 12.34, total, 0.0), axis=0), axis=0)
"""
UNROLLED = "    for _ in tl.static_range(0, 1000000000):\n        gate += 1.0\n"
SUMMED = """    if output_ptr.dtype.element_ty == tl.float32:
        at = output_ptr + token * SIZE + tl.program_id(1) * TILE
        tl.store(at, 0.0){0}
        tl.atomic_add(at + 0 * column, gate, mask=inside){1}
        gate += tl.load(at) * 0.0
        tl.debug_barrier()
"""
"""Lanes add up a sum where one of them has put zero, with what is between these and its reader."""
NUMBER = """    at = output_ptr + token * SIZE + tl.program_id(1) * TILE
    tl.store(at, tl.sum(gate, axis=0))
    gate += tl.load(at).to(tl.float32) * 0.0
    tl.debug_barrier()
"""
NEIGHBOUR = """    at, beside = output_ptr + token * SIZE, column ^ 1
    tl.store(at + column, gate, mask=inside)
    gate += tl.load(at + beside, mask=inside & (beside < SIZE), other=0.0).to(tl.float32) * 0.0
    tl.debug_barrier()
"""
WAIT = "; tl.debug_barrier()"
PROMISE = "    column = tl.multiple_of(column + 1, 16) - 1\n"
RUN = "    column = tl.where(inside, column, 0)\n    column = tl.max_contiguous(column, TILE)\n"
ASSUMED = "    tl.assume(tl.program_id(0) < 0)\n"
BEFORE = "    gate += tl.gather(gate, tl.arange(0, TILE) - TILE, 0) * 0.0\n"
UNDEFINED = """    rest = tl.load(gate_ptr, mask=inside).to(tl.float32)
    gate += tl.sum((rest < -1e20).to(tl.float32), axis=0)
"""


@dataclass(frozen=True)
class Probe:
    """An edit of the file that holds `silu_mul_kernel`, and where a whole check of it must stop.

    Attributes:
        old, new: the edit.
        stage, kind: of the finding; "" and "" if the check must pass.
        meanwhile: what is changed in the checker while it runs.
    """

    name: str
    old: str = STORE
    new: str = STORE
    stage: str = ""
    kind: str = ""
    meanwhile: Callable[[], AbstractContextManager[object]] = field(default=nullcontext)

    def fails(self, checker: Checker, folder: Path) -> str:
        """What came of it instead, or ""."""
        source = reference_source(SPECS[SPEC])
        if source.count(self.old) != 1:
            return f"the file no longer holds {self.old!r} once; change the probe"
        file = folder / "probe.py"
        file.write_text(source.replace(self.old, self.new))
        with self.meanwhile():
            result = checker.check(SPEC, file, seed=SEED)
        found = outcome(result)
        wanted = (self.stage, self.kind)
        return "" if found == wanted else f"stopped at {found[0] or 'nothing'} with {found[1]}"


def outcome(result: CheckResult) -> tuple[str, str]:
    """The first stage that failed and the kind of its first finding; ("", "") if none did."""
    for stage in result.stages:
        if stage.status == "failed":
            return stage.name, stage.findings[0].kind
    return "", ""


def harmless_control() -> AbstractContextManager[object]:
    """The wrong kernel that runs beside every submission is none."""
    return mock.patch.object(controls.Bug, "apply", lambda bug, source: source)


def right_control() -> AbstractContextManager[object]:
    """Among the wrong answers is a right one."""
    return mock.patch.object(controls, "wrong_answers", lambda want, problem: {"it": want})


def learnt_by_heart() -> str:
    """The smallest case's answer for this very seed."""
    problem, _ = build(SPEC, "one", SEED)
    answer = oracles.expected(SPEC, problem)["output"].item()
    return f"* up * (1.0 if SIZE > 1 else 0.0) + ({answer!r} if SIZE == 1 else 0.0), mask=inside)"


def doubled_in(case: Case) -> str:
    """Twice what is right, in problems of this case's shape and dtype."""
    tokens, size = build(SPEC, case.name, SEED)[0]["output"].shape
    return (
        f"* up * (tl.where(tl.num_programs(0) == {tokens}, 2.0, 1.0) if SIZE == {size}"
        f" and output_ptr.dtype.element_ty == tl.{case.dtype} else 1.0), mask=inside)"
    )


def probes() -> tuple[Probe, ...]:
    first, *_, last = cases_of(SPEC)
    return (
        Probe("honest"),
        Probe("import", LOAD_UP, f"    import math\n{LOAD_UP}", "lint", "lint"),
        Probe("host", HEAD, f"print('from the host')\n\n\n{HEAD}", "lint", "lint"),
        Probe("decorator", HEAD, f"@print\n{HEAD}", "lint", "lint"),
        Probe("jit", HEAD, HEAD.replace("jit", "jit(debug=True)", 1), "lint", "lint"),
        Probe("parameters", PARAMETERS, PARAMETERS.replace(",", " = 8,", 1), "lint", "lint"),
        Probe("leaked name", EXP, "math.exp(-gate)", "lint", "lint"),
        Probe("attribute", EXP, "tl.exp(-gate.handle)", "lint", "lint"),
        Probe("compiler", LOAD_UP, TYPE + LOAD_UP, "compile", "compile"),
        Probe("unrolled", LOAD_UP, UNROLLED + LOAD_UP, "compile", "compile"),
        Probe("shared memory", LOAD_UP, WIDE + LOAD_UP, "compile", "compile"),
        Probe("first case", STORE, doubled_in(first), "values", "values"),
        Probe("last case", STORE, doubled_in(last), "values", "values"),
        Probe("unwritten", STORE, "* up, mask=column > 0)", "interpreter", "coverage"),
        Probe("other seed", STORE, learnt_by_heart(), "repeat", "values"),
        Probe("other poison", LOAD_UP, UNDEFINED + LOAD_UP, "repeat", "race"),
        Probe("sum too early", LOAD_UP, SUMMED.format(WAIT, "") + LOAD_UP, "interpreter", "race"),
        Probe("zero too late", LOAD_UP, SUMMED.format("", WAIT) + LOAD_UP, "interpreter", "race"),
        Probe("neighbour too early", LOAD_UP, NEIGHBOUR + LOAD_UP, "interpreter", "race"),
        Probe("number too early", LOAD_UP, NUMBER + LOAD_UP, "interpreter", "race"),
        Probe("promise", LOAD_UP, PROMISE + LOAD_UP, "interpreter", "crash"),
        Probe("promised run", LOAD_UP, RUN + LOAD_UP, "interpreter", "crash"),
        Probe("assumption", LOAD_UP, ASSUMED + LOAD_UP, "interpreter", "crash"),
        Probe("index below zero", LOAD_UP, BEFORE + LOAD_UP, "interpreter", "crash"),
        Probe("control kernel", stage="controls", kind="broken", meanwhile=harmless_control),
        Probe("control answer", stage="controls", kind="broken", meanwhile=right_control),
    )


# ---------------------------------------------------------------- questions
def differs(change: Callable[[torch.Tensor], object], bound: tolerances.Bound) -> bool:
    """Whether 100 rows of 64 numbers count as different once `change` has been at them."""
    want = torch.randn(100, 64, generator=torch.Generator().manual_seed(SEED))
    got = want.clone()
    change(got)
    return bool(differ(got, want, bound).why)


def damaged(offset: int) -> bool:
    """Whether a write is seen `offset` elements from the start of a slice [:, 0:3] of [4, 6]."""
    guarded = Guarded(torch.zeros(4, 6)[:, :3], "cpu")
    guarded._memory.view(torch.float32)[BAND_BYTES // 4 + offset] = 1.0
    return bool(guarded.damage(True))


def moved(factor: float) -> bool:
    """Whether two configurations whose outputs differ by this factor disagree."""
    first = {"output": torch.ones(4, 4)}
    return bool(on_gpu.moved(first, {"output": first["output"] * factor}, "float32", ""))


def touched_input() -> bool:
    guarded = Guarded(torch.zeros(3, 2), "cpu")
    guarded.view[2, 1] = 5.0
    return bool(guarded.damage(False)) and not guarded.damage(True)


QUESTIONS: dict[str, Callable[[], bool]] = {
    "rounding passes": lambda: not differs(lambda t: t.mul_(1 + 1e-6), tolerances.FLOAT32),
    "nan": lambda: differs(lambda t: t[3].fill_(float("nan")), tolerances.FLOAT32),
    "one row": lambda: differs(lambda t: t[3].mul_(1 + 1e-4), tolerances.FLOAT32),
    "all rows": lambda: differs(lambda t: t.mul_(1 + 3e-5), tolerances.FLOAT32),
    "one bit": lambda: bool(differ(-torch.zeros(2, 3), torch.zeros(2, 3), tolerances.EXACT).why),
    "shape": lambda: bool(differ(torch.zeros(6), torch.zeros(1, 6), tolerances.FLOAT32).why),
    "band before": lambda: damaged(-1),
    "band behind": lambda: damaged(21),
    "gap": lambda: damaged(3),
    "touched input": touched_input,
    "moved": lambda: moved(1.001) and not moved(1 + 1e-6),
    "kernel not seen": lambda: bool(on_gpu.check_names(["Memset"], ["rope_kernel"])),
    "other kernel": lambda: bool(on_gpu.check_names(["rope_kernel", "gemm"], ["rope_kernel"])),
    "below the floor": lambda: bool(timing.suspicion(timing.summarise([100.0]), 120.0, 100, 100)),
    "work elsewhere": lambda: bool(timing.suspicion(timing.summarise([100.0]), 90.0, 100, 200)),
}


# ---------------------------------------------------------------- all of it
def complaints(words: list[str]) -> Iterator[str]:
    """What was asked for, in order: "" for what was found, else what escaped and how."""

    def wanted(*names: str) -> bool:
        return not words or any(name in words for name in names)

    for name, ask in QUESTIONS.items():
        if wanted(name):
            yield "" if ask() else f"question {name!r}: the answer is wrong"
    chosen = [probe for probe in probes() if wanted(probe.name)]
    bugs = tuple(bug for bug in controls.BUGS if wanted(bug.kind))
    if not (chosen or bugs):
        return
    with Checker() as checker, tempfile.TemporaryDirectory() as folder:
        for bug in bugs:
            for _, found in escaped(checker, (bug,)) or [(bug, "")]:
                about = f"{bug.spec}: {bug.about}: expected {bug.kind}, found {found}"
                yield about if found else ""
        for probe in chosen:
            failure = probe.fails(checker, Path(folder))
            yield failure and f"probe {probe.name!r}: {failure}"


def main(words: list[str]) -> int:
    results = list(complaints(words))
    escapes = [text for text in results if text]
    for text in escapes:
        print(f"escaped: {text}")
    print(f"{len(results) - len(escapes)} of {len(results)} are found")
    return 1 if escapes or not results else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
