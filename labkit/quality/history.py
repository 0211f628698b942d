"""The bugs of `upstream_notes/HISTORY.md`, put back into our engine: the suites must catch them.

`tests/corpora/history/*.toml` accounts for every row of the catalogue, in one of three ways:

    changes    search and replace texts that make the very mistake in our modules
    mutant     a named mistake of tests/corpora/mutants is the same one: "02-kv-cache/full-hit"
    reason     why it cannot be made here

A mistake in a graded function is to be caught by a hidden suite (`caught_by = "hidden 02.6"`: the
tests of that task; for a mutant its own task's, unless said otherwise), one elsewhere by a test of
the engine (its path and name). A row with several mistakes has several entries: H30, H30b.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from labkit.course.console import course, polite
from labkit.course.files import entries_as_json, write_text
from labkit.course.manifest import Course, ManifestError, Phase
from labkit.inside import child
from labkit.judge import mistakes
from labkit.judge.hidden_suite import run_hidden
from labkit.process import overlay, warm
from labkit.quality.survey import sample

SEED = 1
"""Of the hidden suites' random inputs: the same in every run, so that results can be compared."""
ENGINE_LIMITS = child.Limits(seconds=600)
HIDDEN = re.compile(r"hidden (\d\d\.\d+)")
ROW = re.compile(r"\| (H\d{2,3}) \|")
WAYS = (
    {"what", "caught_by", "changes"},
    {"mutant"},
    {"mutant", "caught_by"},
    {"reason"},
)


def catalogue(root: Path) -> list[list[str]]:
    """The rows of HISTORY.md: id, where, cause, state, kind, test, put back."""
    text = (root / "upstream_notes" / "HISTORY.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if ROW.match(line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@dataclass(frozen=True)
class Bug:
    """One historic mistake.

    Attributes:
        id: "H30", or "H30b" for the second mistake of that row.
        what: the mistake as it looks in our engine.
        caught_by: "hidden 02.6", or "tests/engine/...::test_...".
        texts: the modules that have it, by name, as whole texts.
        reason: why it cannot be made here; then the three before it are empty.
        mutant: the named mistake that it is, or "".
    """

    id: str
    what: str = ""
    caught_by: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    mutant: str = ""

    @property
    def row(self) -> str:
        return self.id.rstrip("abcdefghij")


def load(course: Course) -> list[Bug]:
    """All entries, in the order of their ids.

    Raises:
        ManifestError: an entry is incomplete, or its search text does not stand there once.
    """
    named = named_mistakes(course)
    bugs = []
    for path in sorted((course.root / "tests" / "corpora" / "history").glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["bugs"]:
            bugs.append(load_one(course, f"{path.name}: {entry.get('id')}", entry, named))
    ids = [bug.id for bug in bugs]
    for name in ids:
        if ids.count(name) > 1:
            raise ManifestError(f"tests/corpora/history: two entries are called {name}")
    return sorted(bugs, key=lambda bug: bug.id)


def named_mistakes(course: Course) -> dict[str, dict[str, Any]]:
    """The entries of tests/corpora/mutants, by "02-kv-cache/full-hit"; not checked, and quick to
    read."""
    return {
        f"{phase.slug}/{entry['name']}": entry
        for phase in course.ready
        for entry in mistakes.entries(phase)
    }


def load_one(
    course: Course, where: str, entry: dict[str, Any], named: Mapping[str, dict[str, Any]]
) -> Bug:
    """One entry, checked.

    Raises:
        ManifestError: see :func:`load`; `where` begins the message.
    """
    keys = set(entry) - {"id"}
    if keys not in WAYS or not re.fullmatch(r"H\d{2,3}[a-j]?", str(entry.get("id"))):
        raise ManifestError(
            f"{where}: keys are {', '.join(sorted(entry))}; give an id such as H30 or H30b, and"
            " either what, caught_by and changes, or mutant (and caught_by), or reason"
        )
    if "mutant" in entry:
        return _pointer(course, where, entry, named)
    values = {key: entry[key] for key in entry if key != "changes"}
    return Bug(**values, texts=_changed(course.root, where, entry.get("changes", ())))


def shown(bugs: Iterable[Bug]) -> str:
    """What the catalogue's last column says of a row with these entries."""
    found = [HIDDEN.fullmatch(bug.caught_by) for bug in bugs if not bug.reason]
    tasks = sorted({task[1] for task in found if task})
    return ", ".join([*tasks, *["test"] * (None in found)]) or "–"


def _pointer(
    course: Course, where: str, entry: dict[str, Any], named: Mapping[str, dict[str, Any]]
) -> Bug:
    name = entry["mutant"]
    if name not in named:
        raise ManifestError(f"{where}: tests/corpora/mutants has no {name!r}")
    found = mistakes.load_one(course.phase(name.partition("/")[0]), where, named[name])
    caught_by = entry.get("caught_by", f"hidden {found.exercise}")
    texts = {found.module: found.text}
    return Bug(entry["id"], found.misconception, caught_by, texts, mutant=name)


def _changed(root: Path, where: str, changes: Iterable[dict[str, str]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for change in changes:
        module, search = change["module"], change["search"]
        if module not in texts:
            path = root.joinpath(*module.split(".")).with_suffix(".py")
            texts[module] = path.read_text(encoding="utf-8")
        count = texts[module].count(search)
        if count != 1:
            raise ManifestError(
                f"{where}: the search text is {count} times in {module}; it must be there once:\n"
                f"{search}"
            )
        texts[module] = texts[module].replace(search, change["replace"])
    for module, text in texts.items():
        try:
            compile(text, module, "exec")
        except SyntaxError as error:
            raise ManifestError(f"{where}: {module} is no Python any more: {error}") from None
    return texts


# ---------------------------------------------------------------- running
def failing(course: Course, caught_by: str, texts: Mapping[str, str], only: str = "") -> str:
    """The first test that fails on these modules, of those that `caught_by` names; "" if none.

    Args:
        only: this test alone.

    Raises:
        RuntimeError: the modules cannot be imported, or the tests cannot be loaded.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        mapping = {}
        for number, (module, text) in enumerate(texts.items()):
            path = Path(folder, str(number), f"{module.rpartition('.')[2]}.py")
            path.parent.mkdir()
            path.write_text(text, encoding="utf-8")
            mapping[module] = str(path)
        _import(course.root, mapping)
        if task := HIDDEN.fullmatch(caught_by):
            return _failing_hidden(course.phase(task[1][:2]), task[1], mapping, only)
        return _failing_engine(course.root, caught_by, mapping)


def _import(root: Path, mapping: Mapping[str, str]) -> None:
    """A module that cannot even be imported would be caught by anything."""
    words = ["-c", "; ".join(["import sys", *(f"import {module}" for module in mapping)])]
    done = child.run(words, overlay.environment(root, mapping), ENGINE_LIMITS, root)
    if done.code != 0:
        raise RuntimeError(f"{', '.join(mapping)} cannot be imported: {done.stderr[-400:]}")


def _failing_hidden(phase: Phase, task: str, mapping: Mapping[str, str], only: str) -> str:
    result = run_hidden(phase, mapping, SEED, [task], only.partition("[")[0], stop=True)
    judged = [test for test in result.tests if test.outcome != "not run"]
    if result.broken or not judged:
        raise RuntimeError(f"the hidden suite of {task} did not run: {result.broken[-400:]}")
    return next((test.name for test in judged if not test.passed), "")


def _failing_engine(root: Path, test: str, mapping: Mapping[str, str]) -> str:
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    done = child.run(words, overlay.environment(root, mapping), ENGINE_LIMITS, root)
    if done.code not in (0, 1, None):  # None: it hung, which no test of ours does
        raise RuntimeError(f"{test} did not run: {done.stdout[-400:]}{done.stderr[-400:]}")
    return "" if done.code == 0 else test.rpartition("::")[2]


@dataclass(frozen=True)
class Verdict:
    """The first test that fails with a mistake and passes without it; "" if there is none."""

    bug: Bug
    failed: str

    def __str__(self) -> str:
        mark, detail = ("caught  ", self.failed) if self.failed else ("SURVIVED", self.bug.what)
        return f"{mark} {self.bug.id:5}{self.bug.caught_by[:14]:15} {detail}"


def run(course: Course, bugs: Iterable[Bug], jobs: int = 1) -> Iterator[Verdict]:
    """Put each mistake back in turn.

    Raises:
        RuntimeError: a test that fails with a mistake fails without it, too.
    """
    good: set[str] = set()

    def judge(bug: Bug) -> Verdict:
        failed = failing(course, bug.caught_by, bug.texts)
        if failed and failed not in good:
            if failing(course, bug.caught_by, {}, failed):
                raise RuntimeError(f"{bug.id}: {failed} fails on the engine as it is")
            good.add(failed)
        return Verdict(bug, failed)

    with warm.children(), ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(judge, (bug for bug in bugs if not bug.reason))


# ---------------------------------------------------------------- the command
def results_file(root: Path) -> Path:
    return root / "tests" / "corpora" / "history" / "results.json"


def record(root: Path, verdict: Verdict) -> None:
    """Keep which test failed, beside what was kept before."""
    path = results_file(root)
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    results[verdict.bug.id] = verdict.failed
    write_text(path, entries_as_json({name: results[name] for name in sorted(results)}))


@polite
def main(
    ids: list[str] = typer.Argument(None, help="H05 H30b ...; default: all"),
    number: int = typer.Option(0, "--sample", help="so many of them; 0 = all"),
    seed: int = typer.Option(1, help="draws the sample"),
    write: bool = typer.Option(False, help="record which test failed"),
    jobs: int = typer.Option(max(1, (os.cpu_count() or 1) // 2), help="suites at a time"),
) -> None:
    """Put historic bugs back into the engine; exit code 1 if the tests let one pass."""
    known = course()
    bugs = load(known)
    for name in ids or ():
        if not any(name in (bug.id, bug.row) for bug in bugs):
            raise ValueError(f"tests/corpora/history has no {name}; give ids such as {bugs[0].id}")
    chosen = [bug for bug in bugs if not ids or {bug.id, bug.row} & set(ids)]
    count = survivors = 0
    for verdict in run(known, sample(chosen, number, seed), jobs):
        print(verdict, flush=True)
        count += 1
        survivors += not verdict.failed
        if write:
            record(known.root, verdict)
    for bug in chosen:
        if bug.reason and not number:
            print(f"-        {bug.id:5}{bug.reason}")
    print(f"{count} mistakes put back, {survivors} survived")
    raise typer.Exit(1 if survivors else 0)
