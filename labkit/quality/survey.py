"""`make suite-quality`: what the hidden suites catch, and what they wrongly refuse.

    changes       small wrong changes of every graded function, by rule (`labkit.quality.mutate`);
                  those of kernels are made and judged by `labkit kernel-corpus`
    named         the named mistakes of tests/corpora/mutants
    alternatives  correct solutions that look unlike the reference: they must pass
    baselines     answers that take no thought (None, 0, nothing, the first argument): must fail
    seeds         the reference under fresh seeds: it must pass each time
    fresh         (`--only fresh`) tasks whose questions differ from seed to seed
    own           (`--only own`) named mistakes that cost the points of their own task

`--write` keeps the rows in `tests/corpora/mutants/quality.json`, which docs/instructors.md shows.

A change that survives is either the same program in other words, or a hole in the suite.
`tests/corpora/mutants/survivors.toml` says which, and why; a survivor that stands not there is an
error.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.progress import track

from labkit.course import blocks, source
from labkit.course.console import course, polite
from labkit.course.files import write_text
from labkit.course.manifest import ManifestError, Phase
from labkit.course.skeleton import kernels
from labkit.judge import mistakes, public
from labkit.judge.hidden_suite import run_hidden
from labkit.judge.mistakes import Mutant
from labkit.process import warm
from labkit.quality import alternatives
from labkit.quality.mutate import Mutation, mutations

ENOUGH = 0.95
"""Of the changes that are not the same program: how many a suite must notice."""
SAMPLE = 60
"""So many changes of a phase must have been tried, if it has so many."""
SEEDS = 10
"""Under so many fresh seeds the reference must have passed."""
BASELINES = {
    "None": "return None",
    "zero": "return 0",
    "empty": "return []",
    "first argument": "return locals().get(next(iter(locals()), ''))",
}
Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass
class Line:
    """One row of the matrix.

    Attributes:
        good: how many behaved as they must.
        total: how many ran.
        of: how many there are; more than `total` if only a sample ran.
        wrong: names of those that did not.
    """

    what: str
    good: int
    total: int
    of: int
    wrong: list[str] = field(default_factory=list)
    note: str = ""

    def __str__(self) -> str:
        sample = "" if self.of == self.total else f" (a sample of {self.of})"
        share = f"{self.good / self.total:7.1%}" if self.total else "not run"
        note = f"  {self.note}" if self.note else ""
        return f"  {self.what:13} {self.good:4} of {self.total:4}  {share}{sample}{note}"


def hidden(
    phase: Phase, texts: Mapping[str, str], seed: int, stop: bool, tasks: Sequence[str] = ()
) -> public.PhaseResult:
    """The hidden suite on some modules; those that are not in `texts` are the reference's.

    Args:
        stop, tasks: see `run_hidden`.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        mapping = {}
        for module, text in texts.items():
            path = Path(folder, phase.lab_file(module).name)
            path.write_text(text, encoding="utf-8")
            mapping[module] = str(path)
        return run_hidden(phase, mapping, seed, tasks, stop=stop)


def caught(result: public.PhaseResult) -> bool:
    """A test failed. A suite that did not load has caught nothing, nor has a skipped test."""
    if result.broken:
        raise RuntimeError(f"the hidden suite did not load: {result.broken[-400:]}")
    return any(test.outcome not in ("passed", "not run", "skipped") for test in result.tests)


def noticed(phase: Phase, task: str, module: str, text: str, seed: int) -> bool:
    """Whether the hidden suite fails on a changed module: the tests of the task first, for they
    most often tell."""
    return any(caught(hidden(phase, {module: text}, seed, True, tasks)) for tasks in ([task], []))


def accepted(result: public.PhaseResult) -> bool:
    return bool(result.tests) and not result.broken and all(t.passed for t in result.tests)


def at_work(
    what: str, items: Iterable[Item], function: Callable[[Item], Answer], jobs: int
) -> list[tuple[Item, Answer]]:
    """Apply a function to items, some at a time, with a progress bar on a terminal."""
    items, console = list(items), Console(stderr=True)
    with ThreadPoolExecutor(jobs) as pool:
        answers = pool.map(function, items)
        shown = track(answers, what, len(items), console=console, disable=not console.is_terminal)
        return list(zip(items, shown, strict=True))


# ---------------------------------------------------------------- the rows
@dataclass(frozen=True)
class Survivor:
    """One entry of survivors.toml: a change that the suite does not notice, and why.

    Attributes:
        equivalent: no input can tell it from the reference; it does not count.
    """

    phase: str
    change: str
    equivalent: bool
    reason: str


def survivors_file(phase: Phase) -> Path:
    return phase.root / "tests" / "corpora" / "mutants" / "survivors.toml"


def load_survivors(phase: Phase) -> dict[str, Survivor]:
    """Change -> entry, for one phase.

    Raises:
        ManifestError: an entry lacks a key or has another one.
    """
    path = survivors_file(phase)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = {}
    for index, entry in enumerate(tomllib.loads(text).get("survivors", [])):
        if set(entry) != {"phase", "change", "equivalent", "reason"}:
            raise ManifestError(
                f"{path.name}: survivors[{index}]: keys are {', '.join(sorted(entry))};"
                " give phase, change, equivalent and reason"
            )
        if entry["phase"] == phase.number:
            found[entry["change"]] = Survivor(**entry)
    return found


def sample(items: list[Item], number: int, seed: int) -> list[Item]:
    """`number` of the items, the same ones for the same seed; 0 = all of them."""
    if number <= 0 or number >= len(items):
        return items
    return random.Random(seed).sample(items, number)


def changes_of(phase: Phase) -> list[Mutation]:
    """The changes of every graded function but kernels: `labkit kernel-corpus` changes those, and
    asks the checker alone."""
    left_out = kernels(phase)
    return [m for m in mutations(phase) if (m.module, m.function) not in left_out]


def row_of_changes(phase: Phase, number: int, seed: int, jobs: int) -> Line:
    """Changes made by rule that are no equivalents, and how many of them the suite notices."""
    chosen = draw(phase, number, seed)
    alive = unnoticed(phase, chosen, seed, jobs)
    return line_of_changes(phase, alive, len(chosen), len(not_equivalent(phase)))


def row_of_changes_again(phase: Phase, seed: int, jobs: int) -> Line:
    """The recorded row of changes, after tests were added or survivors explained: only what
    survived then is tried again, and what came into a sample where an equivalent went out.

    Raises:
        ValueError: no row of changes was recorded, or it names one that is not made any more.
    """
    row = recorded(phase.root).get(phase.slug, {}).get("changes", {"total": 0, "wrong": ()})
    gone = set(row["wrong"]) - {mutation.name for mutation in changes_of(phase)}
    now = len(not_equivalent(phase))
    if not row["total"]:
        why = "there is none"
    elif gone:
        why = f"{len(gone)} of its survivors are not made any more"
    elif now > row["of"]:
        why = f"it was made of {row['of']} changes, and there are {now} now"
    else:
        why = ""
    if why:
        raise ValueError(
            f"{RECORD}: the row of {phase.slug}'s changes cannot be mended: {why};"
            f" measure with --only changes --sample {SAMPLE} --write"
        )
    known = load_survivors(phase)
    is_sample = row["total"] < row["of"]
    chosen = draw(phase, row["total"] if is_sample else 0, seed)
    went_out = sum(known[name].equivalent for name in row["wrong"] if name in known)
    came_in = chosen[len(chosen) - went_out :] if is_sample else []
    again = {*row["wrong"], *known, *(mutation.name for mutation in came_in)}
    alive = unnoticed(phase, [m for m in chosen if m.name in again], seed, jobs)
    return line_of_changes(phase, alive, len(chosen), len(not_equivalent(phase)))


def draw(phase: Phase, number: int, seed: int) -> list[Mutation]:
    """`number` of the changes that are no equivalents; 0 = all of them.

    The seed puts all changes into an order before equivalents are left out, so that one more
    equivalent moves no other change into or out of a sample but the one that takes its place.
    """
    counted = {mutation.name for mutation in not_equivalent(phase)}
    every = changes_of(phase)
    random.Random(seed).shuffle(every)
    return [mutation for mutation in every if mutation.name in counted][: number or None]


def not_equivalent(phase: Phase) -> list[Mutation]:
    """The changes that some input can tell from the reference."""
    equal = {survivor.change for survivor in load_survivors(phase).values() if survivor.equivalent}
    return [mutation for mutation in changes_of(phase) if mutation.name not in equal]


def unnoticed(phase: Phase, chosen: Iterable[Mutation], seed: int, jobs: int) -> list[str]:
    """Names of the changes that the hidden suite lets pass."""

    def seen_by(mutation: Mutation) -> bool:
        return noticed(phase, mutation.task, mutation.module, mutation.text, seed)

    verdicts = at_work(f"{phase.number} changes", chosen, seen_by, jobs)
    return [mutation.name for mutation, seen in verdicts if not seen]


def line_of_changes(phase: Phase, alive: list[str], total: int, of: int) -> Line:
    known = load_survivors(phase)
    line = Line("changes", total - len(alive), total, of)
    line.wrong = [name for name in alive if name not in known]
    line.note = f"{sum(survivor.equivalent for survivor in known.values())} equivalent left out"
    if alive and len(alive) != len(line.wrong):
        line.note += f", {len(alive) - len(line.wrong)} known survivors"
    return line


def row_of_mistakes(phase: Phase, seed: int, jobs: int) -> Line:
    """The named mistakes."""
    known = mistakes.load(phase)

    def seen_by(mutant: Mutant) -> bool:
        return noticed(phase, mutant.exercise, mutant.module, mutant.text, seed)

    verdicts = at_work(f"{phase.number} named mistakes", known, seen_by, jobs)
    wrong = [mutant.name for mutant, seen in verdicts if not seen]
    return Line("named", len(known) - len(wrong), len(known), len(known), wrong)


def row_of_own_tasks(phase: Phase, number: int, seed: int, jobs: int) -> Line:
    """The named mistakes again, or a sample of them, each by the hidden tests of its own task
    alone: points are given by task, and a failure in another one costs none of this one's."""
    known = mistakes.load(phase)

    def seen_by(mutant: Mutant) -> bool:
        result = hidden(phase, {mutant.module: mutant.text}, seed, True, [mutant.exercise])
        return caught(result)

    chosen = sample(known, number, seed)
    verdicts = at_work(f"{phase.number} mistakes by task", chosen, seen_by, jobs)
    wrong = [mutant.name for mutant, seen in verdicts if not seen]
    return Line("own", len(chosen) - len(wrong), len(chosen), len(known), wrong)


def row_of_alternatives(phase: Phase, seed: int, jobs: int) -> Line:
    names = alternatives.names(phase)
    built = [(name, alternatives.build(phase, name)) for name in names]

    def failing(solution: tuple[str, dict[str, str]]) -> list[str]:
        result = hidden(phase, solution[1], seed, stop=False)
        return [] if accepted(result) else list(mistakes.failing(result))

    verdicts = at_work(f"{phase.number} alternatives", built, failing, jobs)
    wrong = [f"{name}: {', '.join(failed)}" for (name, _), failed in verdicts if failed]
    return Line("alternatives", len(names) - len(wrong), len(names), len(names), wrong)


def baseline(phase: Phase, body: str) -> dict[str, str]:
    """The modules with every graded function doing the same thoughtless thing."""
    texts = {}
    for module in phase.modules:
        text = phase.reference_file(module).read_text(encoding="utf-8")
        for function in phase.holes(module):
            text = source.replace_body(text, function, body, module)
        texts[module] = text
    return texts


def row_of_baselines(phase: Phase, seed: int, jobs: int) -> Line:
    """Thoughtless answers must earn no point at all."""

    def earned(name: str) -> list[str]:
        result = hidden(phase, baseline(phase, BASELINES[name]), seed, stop=False)
        return [task.id for task in phase.exercises if result.task_passed(task)]

    verdicts = at_work(f"{phase.number} baselines", BASELINES, earned, jobs)
    wrong = [f"{name} earns {', '.join(tasks)}" for name, tasks in verdicts if tasks]
    return Line("baselines", len(BASELINES) - len(wrong), len(BASELINES), len(BASELINES), wrong)


def row_of_seeds(phase: Phase, number: int, seed: int, jobs: int) -> Line:
    """The reference under other random inputs."""
    seeds = [random.Random(f"{seed} {index}").randrange(2**31) for index in range(number)]

    def failing(value: int) -> tuple[str, ...]:
        result = hidden(phase, {}, value, stop=False)
        return () if accepted(result) else mistakes.failing(result) or ("no test ran",)

    verdicts = at_work(f"{phase.number} seeds", seeds, failing, jobs)
    wrong = [f"seed {value}: {', '.join(failed)}" for value, failed in verdicts if failed]
    return Line("seeds", number - len(wrong), number, number, wrong)


def row_of_fresh_inputs(phase: Phase, seed: int) -> Line:
    """Tasks whose questions are others under another seed: no list of answers that was written
    down before passes them. Kernels' cases are drawn elsewhere, and tasks without a question to a
    worker do not count."""
    asked = [questions(phase, value) for value in (seed, seed + 1)]
    tasks = [task.id for task in phase.exercises if task.id in asked[1]]
    stale = [task for task in tasks if asked[1][task] <= asked[0].get(task, set())]
    return Line("fresh", len(tasks) - len(stale), len(tasks), len(tasks), stale)


def questions(phase: Phase, seed: int) -> dict[str, set[str]]:
    """Task -> digests of what the hidden suite asks the reference under a seed.

    Raises:
        RuntimeError: a test of the reference failed, or did not run.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        file = Path(folder, "asked")
        result = run_hidden(phase, {}, seed, asked=file)
        wrong = [t.name for t in result.tests if t.outcome not in ("passed", "skipped")]
        if wrong or result.broken or not result.tests:
            why = ", ".join(wrong) or result.broken[-400:] or "no test ran"
            raise RuntimeError(f"the reference does not pass the hidden suite: {why}")
        found: dict[str, set[str]] = {}
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
            task, _, request = line.partition(" ")
            found.setdefault(task, set()).add(request)
        return found


# ---------------------------------------------------------------- the command
PARTS = ("changes", "named", "alternatives", "baselines", "seeds")
OTHERS = ("again", "fresh", "own")
"""Parts that are asked for by name: survivors tried again, inputs that a constant fails, and
mistakes by their own tasks."""
RECORD = "tests/corpora/mutants/quality.json"
PAGE = "docs/instructors.md"


def measure(
    phase: Phase, parts: Iterable[str], number: int, seeds: int, seed: int, jobs: int
) -> list[Line]:
    """The rows of one phase."""
    rows: dict[str, Callable[[], Line]] = {
        "changes": lambda: row_of_changes(phase, number, seed, jobs),
        "again": lambda: row_of_changes_again(phase, seed, jobs),
        "named": lambda: row_of_mistakes(phase, seed, jobs),
        "alternatives": lambda: row_of_alternatives(phase, seed, jobs),
        "baselines": lambda: row_of_baselines(phase, seed, jobs),
        "seeds": lambda: row_of_seeds(phase, seeds, seed, jobs),
        "fresh": lambda: row_of_fresh_inputs(phase, seed),
        "own": lambda: row_of_own_tasks(phase, number, seed, jobs),
    }
    return [rows[part]() for part in parts]


def recorded(root: Path) -> dict[str, dict[str, Any]]:
    """Phase -> row -> its `Line` as plain data, as `--write` left them."""
    path = root / RECORD
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def record(phase: Phase, lines: Iterable[Line]) -> None:
    """Keep rows, beside those that were kept before."""
    known = recorded(phase.root)
    rows = known.setdefault(phase.slug, {})
    rows |= {line.what: asdict(line) for line in lines if line.what in PARTS}
    write_text(phase.root / RECORD, json.dumps(known, indent=1, sort_keys=True) + "\n")


def table(root: Path) -> str:
    """What was recorded, as a table of Markdown."""
    known = recorded(root)
    names = list(dict.fromkeys(name for rows in known.values() for name in rows))
    names.sort(key=PARTS.index)
    lines = [f"| phase | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for slug, rows in sorted(known.items()):
        cells = [cell(Line(**rows[name])) if name in rows else "" for name in names]
        lines.append(f"| {slug} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(line: Line) -> str:
    sample = "" if line.of == line.total else f" (of {line.of})"
    return f"{line.good} of {line.total}{sample}"


def passes(line: Line) -> bool:
    """Changes: at least 95 %, and every survivor explained. All else: all of it."""
    if line.what == "changes":
        return not line.wrong and line.good >= ENOUGH * line.total
    return not line.wrong and line.total > 0


@polite
def main(
    phases: list[str] = typer.Argument(None, help="default: all that are ready"),
    number: int = typer.Option(
        25, "--sample", help="changes a phase, or mistakes with --only own; 0 = all of them"
    ),
    seeds: int = typer.Option(3, help="fresh seeds for the reference"),
    seed: int = typer.Option(1, help="draws the sample and the seeds"),
    only: str = typer.Option(
        ",".join(PARTS), help="some of them, with commas; again = changes that survived last time"
    ),
    jobs: int = typer.Option(max(1, (os.cpu_count() or 1) // 2), help="suites at a time"),
    write: bool = typer.Option(False, help=f"keep the rows in {RECORD} and {PAGE}"),
) -> None:
    """Measure the hidden suites; exit code 1 if one of them lets something through."""
    parts = only.split(",")
    for part in parts:
        if part not in (*PARTS, *OTHERS):
            known_parts = ", ".join((*PARTS, *OTHERS))
            raise ValueError(f"--only has {part!r}; it must be some of {known_parts}")
    known = course()
    chosen = [known.phase(name) for name in phases] if phases else list(known.ready)
    count = 0
    for phase in chosen:
        begun = time.monotonic()
        with warm.children():
            lines = measure(phase, parts, number, seeds, seed, jobs)
        print(f"{phase.slug}  ({time.monotonic() - begun:.0f} s)")
        for line in lines:
            print(line)
            for name in line.wrong:
                print(f"      {name}")
            count += not passes(line)
        sys.stdout.flush()
        if write:
            record(phase, lines)
            blocks.write(phase.root / PAGE, {"quality": table(phase.root)})
    print(f"{len(chosen)} phases, {count} rows that must be better")
    raise typer.Exit(1 if count else 0)
