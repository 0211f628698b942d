"""Which function a failure points to: by its traceback, or by which tests came to which one."""

from __future__ import annotations

import ast
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit.course import source
from labkit.course.console import where_to_edit
from labkit.course.files import read_python
from labkit.course.manifest import Exercise, Phase
from labkit.judge.declared import changed
from labkit.judge.mistakes import Mutant
from labkit.judge.public import PhaseResult, Test
from labkit.judge.slips import Slip, slips

Place = tuple[str, int, str]
"""A path below the checkout, a line, and the function around it."""
REFUSES = ("raise ", "assert ")
"""So a line begins that only says what its caller got wrong."""


def place_to_edit(
    phase: Phase,
    exercise: Exercise,
    tests: Sequence[Test],
    holes: Sequence[source.Function] = (),
    mutant: Mutant | None = None,
) -> str:
    """Where to edit for a task: one of its open `holes`; else what its `tests` make suspect."""
    if holes:
        return where_to_edit(phase, exercise, holes[0].name)
    names, place = suspects(phase, exercise, tests, mutant)
    if place:
        return f"{place[0]}:{place[1]} ({place[2]})"
    return where_to_edit(phase, exercise, *(names or exercise.functions))


def suspects(
    phase: Phase, exercise: Exercise, tests: Sequence[Test], mutant: Mutant | None = None
) -> tuple[list[str], Place | None]:
    """The functions that most probably need work, the first one most of all, and the line if that
    is known.

    Of a known mistake its function; of the first test that failed, which is the one that is
    explained, the function that returned the wrong type or is in the traceback; else the one with a
    slip, whose first lines were changed, or all that it may be (:func:`by_suspicion`). Nothing
    where no test failed.

    Args:
        tests: all of the task's.
        mutant: the mistake that was recognised, of whichever task.
    """
    failed = next((test for test in tests if test.outcome in ("failed", "hang")), None)
    if failed is None:
        return [], None
    fault = place_of_fault(failed, phase, exercise)
    if mutant and mutant.exercise == exercise.id:
        return [mutant.function], fault if fault and fault[2] == mutant.function else None
    returned = (failed.detail.get("returned") or {}).get("function")
    path, met = phase.lab_path(exercise.module), slips_met(failed, phase, exercise)
    if returned in exercise.functions:
        lines = [slip.line for slip in met if slip.function == returned]
        return [returned], (path, lines[0], returned) if lines else None
    place = fault or place_in_task(failed, phase, exercise)
    for slip in met[:1]:
        if slip.elsewhere or not place:
            place = (path, slip.line, slip.function)
    if place:
        return [place[2]], place
    calls = calls_of(phase, exercise)
    return list(changed(phase, exercise)) or by_suspicion(failed, tests, exercise, calls), None


def slips_met(test: Test, phase: Phase, exercise: Exercise) -> list[Slip]:
    """Slips in those of the task's functions that a test has come to; first those that others
    notice. A kernel runs in a copy, so it is not known whether a test came to it."""
    found = slips(phase, exercise)
    came = {name.partition(":")[2] for name in test.detail.get("entered", [])}
    if came & set(exercise.functions):
        found = [slip for slip in found if slip.function in came]
    return sorted(found, key=lambda slip: not slip.elsewhere)


def root_of(result: PhaseResult, failing: Sequence[Exercise]) -> Exercise | None:
    """Of the failing tasks, in order, the one to begin with: the first; but if all of its failing
    tests come to functions of a later one that also fails without it, or each of them names a
    function of a later one as its fault, that one.

    Returns:
        None if none fails.
    """
    if not failing:
        return None
    first, *later = failing
    for other in later:
        with_other = [_comes_to(other, test) for test in _failed(result, first)]
        without_first = [not _comes_to(first, test) for test in _failed(result, other)]
        if all(with_other) and any(without_first):
            return other
        blamed = [_blames(other, test, result.phase) for test in _failed(result, first)]
        if blamed and all(blamed):
            return other
    return first


def _failed(result: PhaseResult, exercise: Exercise) -> list[Test]:
    return [test for test in result.of_task(exercise) if test.outcome in ("failed", "hang")]


def _blames(exercise: Exercise, test: Test, phase: Phase) -> bool:
    """Whether a function of the task has returned a wrong type in a test, or raised its error."""
    returned = test.detail.get("returned") or {}
    if returned:
        own = returned.get("file") == str(phase.lab_file(exercise.module))
        return own and returned["function"] in exercise.functions
    return place_of_fault(test, phase, exercise) is not None


def _comes_to(exercise: Exercise, test: Test) -> bool:
    names = {f"{exercise.module}:{name}" for name in exercise.functions}
    return bool(names & set(test.detail.get("entered", [])))


def calls_of(phase: Phase, exercise: Exercise) -> dict[str, set[str]]:
    """Function of a task -> the others of the task that the reference calls in it."""
    text = phase.reference_file(exercise.module).read_text(encoding="utf-8")
    known = source.functions(text)
    own = {name.rpartition(".")[2]: name for name in exercise.functions}
    found = {}
    for name in exercise.functions:
        nodes = ast.walk(known[name].node) if name in known else ()
        called = {ast.unparse(node.func).rpartition(".")[2] for node in nodes
                  if isinstance(node, ast.Call)}  # fmt: skip
        found[name] = {own[bare] for bare in called & own.keys()} - {name}
    return found


def by_suspicion(
    failed: Test, tests: Sequence[Test], exercise: Exercise, calls: Mapping[str, set[str]]
) -> list[str]:
    """The task's functions that a test had come to when it failed: no other can be the fault. First
    those to which failing tests come and passing ones do not, by Ochiai's coefficient, failing and
    there / sqrt(all failing * all there); of equal ones the one that calls more of the others, and
    of these the later.

    Args:
        calls: see :func:`calls_of`.

    Source: Abreu et al. 2007, "On the accuracy of spectrum-based fault localization".
    """
    came = {
        test.id: {name.partition(":")[2] for name in test.detail.get("entered", [])}
        for test in tests
    }
    bad = [came[test.id] for test in tests if test.outcome in ("failed", "hang")]
    good = [came[test.id] for test in tests if test.outcome == "passed"]

    def coefficient(name: str) -> float:
        failing, passing = (sum(name in names for names in some) for some in (bad, good))
        return failing / math.sqrt(len(bad) * (failing + passing))

    names = [name for name in exercise.functions if name in came[failed.id]]
    order = reversed(names)
    return sorted(order, key=lambda name: (coefficient(name), len(calls[name])), reverse=True)


def place_of(test: Test, phase: Phase) -> Place | None:
    """The innermost line of the learner's files in the traceback: (path, line, function)."""
    found = frame_in(test, phase.labs)
    return found and (found[0].relative_to(phase.root).as_posix(), *found[1:])


def frame_in(test: Test, folder: Path) -> tuple[Path, int, str] | None:
    """The innermost line of a folder's files in the traceback: (file, line, function)."""
    for file, line, function in reversed(test.detail.get("frames", [])):
        if file.startswith(f"{folder}{os.sep}"):
            return Path(file), line, _outer(function)
    return None


def _outer(name: str) -> str:
    """The function that a comprehension, a lambda or an inner function stands in."""
    return name.partition(".<locals>")[0]


def place_in_task(test: Test, phase: Phase, exercise: Exercise) -> Place | None:
    """The innermost line of the traceback in a function of the task, or in one of the learner's
    own: a helper, or given code that the learner has changed. What is given,
    and other tasks, only pass on what this task got wrong."""
    frames = [f for f in test.detail.get("frames", []) if f[0].startswith(str(phase.labs))]
    others = {name for each in phase.exercises for name in each.functions}
    for module in phase.modules if frames else ():
        others |= _as_given(phase, module)
    others -= set(exercise.functions)
    own = [frame for frame in frames if _outer(frame[2]) not in others]
    while len(own) > 1 and source_line(Path(own[-1][0]), own[-1][1]).startswith(REFUSES):
        own.pop()  # it refuses, and is asked by another of them
    for file, line, function in own[-1:]:
        return Path(file).relative_to(phase.root).as_posix(), line, _outer(function)
    return None


def _as_given(phase: Phase, module: str) -> set[str]:
    """The functions that are in the learner's file as they are in the reference."""
    mine, theirs = read_python(phase.lab_file(module)), phase.reference_file(module)
    text = theirs.read_text(encoding="utf-8")
    known, given = source.functions(mine), source.functions(text)
    return {
        name
        for name in known.keys() & given.keys()
        if ast.dump(known[name].node) == ast.dump(given[name].node)
    }


def place_of_fault(test: Test, phase: Phase, exercise: Exercise) -> Place | None:
    """The line that a kernel's fault names, "triton_paged.py:65: …", and its function, if that is
    one of the task's. A kernel runs in a copy, so the traceback does not lead to it."""
    path = phase.lab_file(exercise.module)
    message = str(test.detail.get("message", ""))
    found = re.search(rf"^\s*{re.escape(path.name)}:(\d+): ", message, re.MULTILINE)
    if test.detail.get("error") != "KernelFault" or not found:
        return None
    line = int(found[1])
    for name, function in source.functions(read_python(path)).items():
        inside = function.node.lineno <= line <= (function.node.end_lineno or 0)
        if name in exercise.functions and inside:
            return phase.lab_path(exercise.module), line, name
    return None


def source_line(path: Path, line: int) -> str:
    """That line of a file, without the blanks around it."""
    lines = source.lines_of(read_python(path))
    return lines[line - 1].strip() if line <= len(lines) else ""
