"""The phase matrix: on fresh skeletons everything is red and says why; on the reference all is
green.

For each ready phase:
    skeleton   every public test is red, with a TODO that names itself
    holes      with one hole alone left open, a test of its own task reaches it
    reference  public tests and solved notebook answers are green
    notebook   the student's notebook has every answer open, by name
    leaks      no body of a hole is left in any skeleton or student notebook
    chapters   files, commands and symbols that the chapters name exist
    mutants    at least two named mistakes a task
Skeletons are generated anew into a temporary folder: solved labs in the checkout change nothing.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import typer

from labkit.course import notebook_source, source
from labkit.course.manifest import Course, Exercise, ManifestError, Phase
from labkit.course.root import find_root
from labkit.course.skeleton import skeleton
from labkit.judge import mistakes, public
from labkit.quality import chapters

MIN_NODES = 14
"""A body smaller than this (`return self.x + 1` has 9) may stand elsewhere by chance."""


def check_skeleton(phase: Phase) -> Iterator[str]:
    """Every test is red on the untouched skeleton."""
    with tempfile.TemporaryDirectory() as folder:
        result = public.run_tests(phase, [phase.public_tests], _write(phase, phase, folder))
    if result.broken or not result.tests:
        yield f"the public tests do not load: {result.broken.strip()[-400:] or 'there are none'}"
    tasks = {exercise.id for exercise in phase.exercises}
    for test in result.tests:
        if test.task not in tasks:
            yield f"{test.id}: its name begins with no task; call it test_{phase.number}_1_…"
        elif test.outcome != "todo":
            yield f"{test.name}: {test.outcome} on the untouched skeleton; it must reach a TODO"


def check_holes(phase: Phase) -> Iterator[str]:
    """With one function alone left open, a test of its own task reaches that TODO."""
    holes = [(exercise, name) for exercise in phase.exercises for name in exercise.functions]
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for problem in pool.map(lambda hole: _check_hole(phase, *hole), holes):
            if problem:
                yield problem


def _check_hole(phase: Phase, exercise: Exercise, name: str) -> str:
    alone = replace(phase, exercises=(replace(exercise, functions=(name,)),))
    with tempfile.TemporaryDirectory() as folder:
        mapping = _write(phase, alone, folder)
        options = ["-k", exercise.test_prefix]
        result = public.run_tests(phase, [phase.public_tests], mapping, options)
    reached = [t for t in result.of_task(exercise) if t.waits_for == exercise.id]
    if reached:
        return ""
    return f"{name}: no test {exercise.test_prefix}… reaches it, so nothing judges it"


def _write(phase: Phase, shape: Phase, folder: str) -> dict[str, str]:
    """Write the skeletons of `shape`'s holes; the overlay that maps to them."""
    mapping = {}
    for module in phase.modules:
        file = Path(folder, phase.lab_file(module).name)
        file.write_text(skeleton(shape, module), encoding="utf-8")
        mapping[module] = str(file)
    return mapping


def check_reference(phase: Phase) -> Iterator[str]:
    """Public tests and solved answers are green on the reference."""
    result = public.judge(phase, {})
    if result.broken:
        yield f"the public tests do not load: {result.broken.strip()[-400:]}"
    for test in result.tests:
        if not test.passed:
            yield f"{test.name}: {test.outcome} on the reference: {test.detail.get('message', '')}"
    for record in result.notebook or []:
        if record["outcome"] != "passed":
            yield f"{record['task']}: {record['outcome']} when solved: {record['message']}"


def check_notebook(phase: Phase) -> Iterator[str]:
    """A fresh student notebook has every answer open, and each says its name."""
    if not phase.notebook:
        return
    book = notebook_source.read(phase)
    if not 4 <= len(book.tasks) <= 8:
        yield f"{phase.notebook} has {len(book.tasks)} todo cells; 4 to 8 make a good lab"
    with tempfile.TemporaryDirectory() as folder:
        copy = replace(phase, root=Path(folder), slug=phase.slug)
        copy.labs.mkdir(parents=True)
        text = notebook_source.to_ipynb(phase, book, solved=False)
        (copy.labs / "lab.ipynb").write_text(text, encoding="utf-8")
        _copy_manifest(phase, copy)
        records, _ = public.judge_notebook(copy, {}, "labs")
    for record in records:
        if record["outcome"] != "todo" or not record["message"].startswith("TODO"):
            yield f"{record['task']} in a fresh notebook: {record['outcome']}: {record['message']}"


def _copy_manifest(phase: Phase, copy: Phase) -> None:
    """The judge reads manifest and notebook source below the root it is given."""
    copy.folder.mkdir(parents=True)
    for path in (*phase.folder.glob("*.toml"), phase.notebook_source):
        if path:
            (copy.folder / path.name).write_bytes(path.read_bytes())
    for name in {module.partition(".")[0] for module in phase.modules} | {"tests", "benchmarks"}:
        if (phase.root / name).exists():
            (copy.root / name).symlink_to(phase.root / name)


def find_leaks(course: Course) -> Iterator[tuple[Phase, str]]:
    """Bodies of holes that stand in any fresh skeleton or student notebook of the course."""
    texts: dict[str, str] = {}
    for phase in course.ready:
        for module in phase.modules:
            texts[phase.lab_path(module)] = skeleton(phase, module)
        cells = notebook_source.read(phase).cells
        code = [notebook_source.student_source(c) for c in cells if c.kind == "code"]
        texts[f"labs/{phase.slug}/lab.ipynb"] = "\n".join(code)
    places = {shown: list(_blocks(text)) for shown, text in texts.items()}
    for phase in course.ready:
        for name, body in _bodies(phase):
            for shown, blocks in places.items():
                if any(_contains(block, body) for block in blocks):
                    yield phase, f"the body of {name} stands in {shown}"


def _bodies(phase: Phase) -> Iterator[tuple[str, list[str]]]:
    for module in phase.modules:
        known = source.functions(phase.reference_file(module).read_text(encoding="utf-8"))
        for name in phase.holes(module):
            statements = known[name].statements
            if sum(1 for s in statements for _ in ast.walk(s)) >= MIN_NODES:
                yield name, [ast.dump(statement) for statement in statements]


def _blocks(text: str) -> Iterator[list[str]]:
    """Every list of statements in a text, as dumps."""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a notebook with magics
        return
    for node in ast.walk(tree):
        for part in ("body", "orelse", "finalbody"):
            statements = getattr(node, part, None)
            if isinstance(statements, list):
                yield [ast.dump(statement) for statement in statements]


def _contains(block: list[str], body: list[str]) -> bool:
    return any(block[i : i + len(body)] == body for i in range(len(block) - len(body) + 1))


def check_mutants(phase: Phase) -> Iterator[str]:
    """At least two named mistakes a task, and the recorded vectors know each."""
    known = mistakes.load(phase)
    for exercise in phase.exercises:
        count = sum(mutant.exercise == exercise.id for mutant in known)
        if count < 2:
            yield f"task {exercise.id} has {count} mutants; name at least 2 mistakes"
    path = mistakes.vectors_file(phase)
    recorded = json.loads(path.read_text(encoding="utf-8"))["public"] if path.exists() else {}
    names = {mutant.name for mutant in known}
    missing = sorted(names ^ set(recorded) | mistakes.faults(phase).keys() - names)
    if missing:
        yield f"{path.name} is not up to date ({', '.join(missing)}): run `mutants --write`"


CHECKS: dict[str, Callable[[Phase], Iterator[str] | list[str]]] = {
    "skeleton": check_skeleton,
    "holes": check_holes,
    "reference": check_reference,
    "notebook": check_notebook,
    "chapters": chapters.check,
    "mutants": check_mutants,
}


def run(course: Course, phases: list[Phase]) -> dict[str, dict[str, list[str]]]:
    """Phase -> check -> problems."""
    found = {p.slug: {name: list(check(p)) for name, check in CHECKS.items()} for p in phases}
    for phase, problem in find_leaks(course):
        if phase.slug in found:
            found[phase.slug].setdefault("leaks", []).append(problem)
    return found


def main(phases: list[str] = typer.Argument(None, help="default: all that are ready")) -> None:
    """Prove for each phase: skeleton red, reference green, nothing leaked, chapters true."""
    course = Course(find_root())
    try:
        chosen = [course.phase(name) for name in phases] if phases else list(course.ready)
        found = run(course, chosen)
    except (ManifestError, source.SourceError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    count = 0
    for slug, checks in found.items():
        for name in [*CHECKS, "leaks"]:
            problems = checks.get(name, [])
            print(f"{'✗' if problems else '✓'} {slug:24} {name}")
            for problem in problems:
                print(f"    {problem}")
            count += len(problems)
    print(f"{len(found)} phases, {count} problems")
    raise typer.Exit(1 if count else 0)
