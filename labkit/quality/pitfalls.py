"""`labkit pitfalls`: each sentence that warns or forbids has a public test that fails when it is
broken.

The sentences are found, not listed: all below "Pitfalls" of a task in `02-mini-build.md`, and those
of a graded function's docstring that say `FORBIDS`, or that name an error. `tests/corpora/pitfalls/
NN-slug.toml` joins each to a named mistake of its task:

    open = 3

    ["02.1"]
    "A block with room left has no hash." = "names-blocks-with-room"
    "Begin anew. Change nothing." = ["one-mistake", "another"]
    "Read both neighbours first." = { none = "an order that no result shows" }

A key is one sentence, or several that stand together and that the same mistake breaks. `open`
counts the sentences that no row holds yet, and goes once it is 0. The test is the first one of the
task that fails on the mistake, as `labkit mutants NN --write` recorded it; that it still fails is
proved there. This check reads text only.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from labkit.course import source
from labkit.course.console import polite
from labkit.course.manifest import Course, Exercise, ManifestError, Phase
from labkit.course.root import find_root
from labkit.judge import mistakes, public

FORBIDS = re.compile(
    r"\b([Nn]ever|[Nn]ot|[Nn]o|[Nn]othing|[Oo]nly|must|unchanged|[Ww]ithout|[Nn]either|nor|cannot)\b"
)
"""Words of a docstring's sentence that make it a promise a learner can break."""
ERROR = re.compile(r"^\w*(Error|Exception)\b")
TASK = re.compile(r"(?ms)^## Task (\d+)\b(.*?)(?=^## |\Z)")
PITFALLS = re.compile(r"(?ms)^(?:\*\*Pitfalls?\.\*\*|Pitfalls?\n\n- )\s*(.*?)(?=\n\s*\n|\Z)")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^a-z\s])|(?<=:)\n\s*|\n\s*\n")
BULLET = re.compile(r"(?m)^- ")
ARGUMENT = re.compile(r"\n(?=\s*\w+: )")
SHORTEST_REASON = 12


@dataclass(frozen=True)
class Sentence:
    """One thing that a learner is told not to do, in words of the chapter or of a docstring."""

    task: str
    text: str


@dataclass(frozen=True)
class Row:
    """What the table says of some sentences: the mistakes that break them, or why none does."""

    task: str
    text: str
    mistakes: tuple[str, ...]
    none: str = ""


def passages(phase: Phase, task: Exercise) -> Iterator[tuple[str, bool]]:
    """Texts that may warn: (pitfalls of the chapter, True), (docstring of a function, False)."""
    chapter = (phase.folder / "02-mini-build.md").read_text(encoding="utf-8")
    for number, section in TASK.findall(chapter):
        if int(number) == task.number:
            yield from ((text, True) for text in PITFALLS.findall(section))
    module = phase.reference_file(task.module).read_text(encoding="utf-8")
    for name in task.functions:
        yield ast.get_docstring(source.find(module, name, task.module).node) or "", False


def sentences(phase: Phase) -> list[Sentence]:
    """All that the table of a phase has to hold, in the order of its tasks."""
    found: dict[Sentence, None] = {}
    for task in phase.exercises:
        for text, whole in passages(phase, task):
            for part in (BULLET if whole else ARGUMENT).split(text):
                for sentence in map(plain, SENTENCE_END.split(part)):
                    if sentence and (whole or FORBIDS.search(sentence) or ERROR.match(sentence)):
                        found[Sentence(task.id, sentence)] = None
    return list(found)


def plain(text: str) -> str:
    """One line, whatever the file's lines are."""
    return " ".join(text.split())


def pitfalls_file(phase: Phase) -> Path:
    return phase.root / "tests" / "corpora" / "pitfalls" / f"{phase.slug}.toml"


@dataclass(frozen=True)
class Table:
    """The table of a phase: its rows, and how many sentences it says that they leave open."""

    rows: list[Row]
    open: int = 0


def load(phase: Phase) -> Table:
    """The table of a phase; empty if there is none.

    Raises:
        ManifestError: not TOML, or a row of another form than this module's docstring shows.
    """
    path = pitfalls_file(phase)
    if not path.exists():
        return Table([])
    shown = path.relative_to(phase.root).as_posix()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{shown}: not valid TOML: {error}") from None
    left = document.pop("open", 0)
    if not isinstance(left, int):
        raise ManifestError(
            f"{shown}: open is {left!r}; give the number of sentences without a row"
        )
    found = [
        _row(f"{shown}: {task}: {text!r}", task, text, value)
        for task, table in document.items()
        for text, value in table.items()
    ]
    return Table(found, left)


def _row(where: str, task: str, text: str, value: Any) -> Row:
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and names and all(isinstance(n, str) and n for n in names):
        return Row(task, text, tuple(names))
    if isinstance(value, dict) and list(value) == ["none"] and len(value["none"]) > SHORTEST_REASON:
        return Row(task, text, (), value["none"])
    raise ManifestError(
        f"{where} is {value!r}; give a named mistake, a list of them, or"
        f' {{ none = "why no test can fail" }} with more than {SHORTEST_REASON} letters'
    )


def missing(phase: Phase, table: Table) -> list[Sentence]:
    """The sentences that no row holds."""
    kept: dict[str, list[str]] = {}
    for row in table.rows:
        kept.setdefault(row.task, []).append(row.text)
    return [s for s in sentences(phase) if not any(s.text in t for t in kept.get(s.task, ()))]


def faults(phase: Phase, table: Table) -> list[str]:
    """What is wrong with a phase's table, in a line each."""
    texts = {t.id: [plain(text) for text, _ in passages(phase, t)] for t in phase.exercises}
    tests = caught_by(phase)
    found = []
    for row in table.rows:
        where = f"{row.task} {row.text!r}"
        if not any(row.text in text for text in texts.get(row.task, ())):
            found.append(f"{where}: neither the chapter nor a docstring of the task says so now")
        for name in row.mistakes:
            if (row.task, name) not in tests:
                found.append(f"{where}: task {row.task} has no named mistake {name!r}")
            elif not tests[row.task, name]:
                found.append(
                    f"{where}: {name!r} is caught by no public test of its task; write one, then"
                    f" `python -m labkit mutants {phase.number} --write`"
                )
    left = len(missing(phase, table))
    if left > table.open:
        found.append(f"{left} sentences have no row: `python -m labkit pitfalls --open`")
    elif left < table.open:
        found.append(f"{left} sentences have no row, fewer than before: write `open = {left}`")
    return found


def caught_by(phase: Phase) -> dict[tuple[str, str], str]:
    """(Task, named mistake) -> the first public test of the task that was seen to fail on it and
    still exists; "" if there is none."""
    recorded = json.loads(mistakes.vectors_file(phase).read_text(encoding="utf-8"))["public"]
    files = sorted(phase.public_tests.rglob("test_*.py"))
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    there = set(re.findall(r"(?m)^\s*def (test_\w+)\(", text))
    found = {}
    for entry in mistakes.entries(phase):
        task, name = entry["exercise"], entry["name"]
        mine = (test for test in recorded.get(name, ()) if public.task_of(test) == task)
        found[task, name] = next((t for t in mine if t.partition("[")[0] in there), "")
    return found


@polite
def main(
    phases: list[str] = typer.Argument(None, help="phases; default: all that are ready"),
    open_: bool = typer.Option(False, "--open", help="print the rows that are missing, as TOML"),
) -> None:
    """Show which public test stands behind each warning; exit code 1 if a table is wrong."""
    course = Course(find_root())
    wrong = 0
    for phase in [course.phase(name) for name in phases] if phases else course.ready:
        table = load(phase)
        if open_:
            print(as_toml(missing(phase, table)), end="")
            continue
        bad = faults(phase, table)
        show(phase, table)
        print("".join(f"WRONG {line}\n" for line in bad), end="")
        wrong += len(bad)
    raise typer.Exit(1 if wrong else 0)


def show(phase: Phase, table: Table) -> None:
    """The rows, each with its tests, and what they come to."""
    tests = caught_by(phase)
    for row in table.rows:
        behind = [f"{name}: {tests.get((row.task, name)) or '?'}" for name in row.mistakes]
        print(f"{row.task}  {row.text}")
        print("\n".join(f"      {line}" for line in behind or [f"no test: {row.none}"]))
    without = sum(not row.mistakes for row in table.rows)
    print(
        f"phase {phase.slug}: {len(table.rows) - without} rows with a test, {without} without;"
        f" {len(missing(phase, table))} sentences open"
    )


def as_toml(sentences: list[Sentence]) -> str:
    """Rows to fill in."""
    lines = []
    for sentence in sentences:
        head = f'["{sentence.task}"]'
        lines += [] if head in lines else ["", head]
        lines.append(f'{json.dumps(sentence.text, ensure_ascii=False)} = ""')
    return "\n".join([*lines, ""]) if lines else ""
