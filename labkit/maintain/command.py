"""`make maintain`: the bugs of vLLM that you can mend. `make maintain-22`, or a name: a working
copy of the tree. `make maintain-check`: your test, then your fix, are judged."""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path
from typing import Any

import typer

from labkit.citations import upstream
from labkit.course.console import Screen, course, polite, some
from labkit.course.root import UPSTREAM, upstream_root
from labkit.course.state import State
from labkit.maintain import bugs, copy
from labkit.maintain.bugs import Bug, CatalogueError, Edits
from labkit.maintain.judge import (
    LIMIT,
    VARIANTS,
    Bench,
    Outcome,
    failed,
    fresh_seeds,
    lockstep_failures,
    own_test_verdict,
    traces,
)

TABLE = "maintain"
"""In `.labkit/state.json`: bug -> {"begun": when, "test": hash of the accepted test,
"solved": when, "lines": n, "text": …}; and "current" -> {"id": the bug to be judged}."""
PARTS = ("What", "Why", "How tested", "Blast radius")
QUESTIONS = {"size": "Why this size?", "place": "Why this place?", "open": "What stays open?"}
SECTIONS = (*PARTS, *QUESTIONS.values())
"""Of a pull request's text."""
WORDS = 5
"""Of each section, at least."""
SHOWN = 3
MEGABYTES = 100
"""Of the wheel that `make upstream` downloads, about."""


@polite
def main(
    which: str = typer.Argument("", help='a bug (22, or its name), or "check"'),
    test: bool = typer.Option(
        False, "--test", help="only run your test, on the pin and on your copy"
    ),
    again: bool = typer.Option(False, "--again", help="judge your test anew, too"),
    patch: bool = typer.Option(False, "--patch", help=f"only write {copy.PATCH}, to be handed in"),
) -> None:
    """Mend a bug of the real vLLM, in the real tree at the pin."""
    root, out = course().root, Screen()
    if not which:
        show_all(out, root)
        return
    bug = current(root) if which == "check" else bugs.find(root, which)
    tree = fetched(out, root)
    if which == "check" or test or patch:
        if not copy.folder(bug).is_dir():
            raise CatalogueError(
                f"bug {bug.id} has no working copy; `make maintain-{bug.id}` makes it"
            )
        if patch:
            out.line(copy.shown(bug, copy.write_patch(copy.folder(bug))))
            return
        begun = time.monotonic()
        with Bench(root) as bench:
            good = run_own(out, bug, bench) if test else check(out, bug, bench, again)
        out.line(f"{time.monotonic() - begun:.0f} s", "dim")
        raise typer.Exit(0 if good else 1)
    start(out, bug, tree)


def fetched(out: Screen, root: Path) -> Path:
    """The pinned tree; it is fetched if it is not here.

    Raises:
        CatalogueError: it cannot be had.
    """
    if upstream_root(root) is None:
        out.line(f"vLLM's source is not in {UPSTREAM} yet. Fetching its Python files, from GitHub"
                 f" or out of the published wheel ({MEGABYTES} MB, a minute or two) …",
                 "dim")  # fmt: skip
        try:
            upstream.ensure(root)
        except upstream.UpstreamError as error:
            raise CatalogueError(str(error)) from None
    tree = upstream_root(root)
    assert tree is not None
    return tree


# ------------------------------------------------------------------ what the course remembers
def record_of(bug: Bug) -> dict[str, Any]:
    return dict(State(bug.root).get(TABLE, bug.id) or {})


def put(bug: Bug, **values: Any) -> None:
    State(bug.root).put(TABLE, bug.id, record_of(bug) | values)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S")


def current(root: Path) -> Bug:
    """The bug that was begun last."""
    name = (State(root).get(TABLE, "current") or {}).get("id")
    if not name:
        raise CatalogueError(
            "no bug is begun; `make maintain` lists them, `make maintain-22` begins one"
        )
    return bugs.find(root, name)


# ------------------------------------------------------------------ the list, and a beginning
def show_all(out: Screen, root: Path) -> None:
    known = bugs.load(root)
    out.line("maintain · mend the real vLLM", "bold")
    out.line("Each is a bug that vLLM 0.22.1 has and a later release has not. Sorted by phase and"
             " difficulty, of 5.")  # fmt: skip
    out.line()
    for bug in sorted(known, key=lambda bug: (bug.phase, bug.difficulty, bug.id)):
        word = (
            "solved"
            if "solved" in record_of(bug)
            else "begun"
            if copy.folder(bug).is_dir()
            else "new"
        )
        mark, style = {"solved": ("✓", "green"), "begun": ("…", "yellow")}.get(word, ("○", "dim"))
        out.line(
            f"{mark} {bug.id}  phase {bug.phase}  {'*' * bug.difficulty:<5}  {bug.title}", style, 2
        )
    out.line()
    out.line("next: make maintain-22, or any other number", "bold")


def start(out: Screen, bug: Bug, tree: Path) -> None:
    """Make the working copy, or say where it is."""
    place = copy.folder(bug)
    out.line(f"maintain-{bug.id} · {bug.title}", "bold")
    if not place.is_dir():
        out.line("copying vLLM's 1,758 Python files (28 MB), and committing them …", "dim")
        copy.begin(bug, tree)
        put(bug, begun=now())
    State(bug.root).put(TABLE, "current", {"id": bug.id})
    out.line()
    out.line(bug.report, indent=2)
    out.line()
    out.pair("read", copy.shown(bug, place / copy.REPORT), "", 0, 6)
    out.pair("test", copy.shown(bug, place / copy.TEST), "", 0, 6)
    out.pair("mend", copy.shown(bug, place / "vllm"), "", 0, 6)
    out.pair("then", "make maintain-check", "", 0, 6)


def run_own(out: Screen, bug: Bug, bench: Bench) -> bool:
    """Run the learner's test, and judge nothing."""
    file = copy.folder(bug) / copy.TEST
    changed = copy.edits(copy.folder(bug), bench.tree)
    on_pin, on_copy = bench.own_test(file, {}), bench.own_test(file, changed)
    for name, outcomes in (("on the pin", on_pin), ("on your copy", on_copy)):
        out.line(f"{name}:", "bold")
        for outcome in outcomes:
            mark, style = ("✓", "green") if outcome.passed else ("✗", "red")
            out.line(f"{mark} {outcome.name}  {outcome.said}", style, 2)
    return not failed(on_copy)


# ------------------------------------------------------------------ the verdict
def check(out: Screen, bug: Bug, bench: Bench, again: bool = False) -> bool:
    """The learner's test, the fix, the golden traces, the answers, up to the first that fails."""
    bug.sealed()
    place = copy.folder(bug)
    out.line(f"maintain-{bug.id} · {bug.title}", "bold")
    if not check_test(out, bug, bench, place / copy.TEST, again):
        return False
    changed = copy.edits(place, bench.tree)
    if not changed:
        out.line(f"next: mend it below {copy.shown(bug, place / 'vllm')}", "bold")
        return False
    if not (check_size(out, bench, changed) and check_fix(out, bug, bench, changed)):
        return False
    if not check_lockstep(out, bug, bench, changed):
        return False
    copy.write_patch(place)
    return tell(out, bug, bench, changed)


def check_test(out: Screen, bug: Bug, bench: Bench, file: Path, again: bool) -> bool:
    """A test that was accepted is judged anew only if it has changed."""
    if not file.is_file():
        out.line(f"✗ {copy.shown(bug, file)} is missing; write your test there", "red")
        return False
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    if again or record_of(bug).get("test") != digest:
        if problem := own_test_verdict(bench, bug, file):
            out.line(f"✗ your test: {problem}", "red")
            return False
        put(bug, test=digest)
    out.line(
        "✓ your test fails on the pin, passes with a right fix, and refuses a wrong one", "green"
    )
    return True


def check_size(out: Screen, bench: Bench, changed: Edits) -> bool:
    count = copy.size(bench.tree, changed)
    if count > LIMIT:
        out.line(
            f"✗ your fix changes {count} lines in {some(list(changed))}; the limit is {LIMIT}",
            "red",
        )
        out.line("A reviewer reads every line: leave out what does not mend the bug.")
        return False
    out.line(f"✓ {count} changed lines in {some(list(changed))}", "green")
    return True


def check_fix(out: Screen, bug: Bug, bench: Bench, changed: Edits) -> bool:
    outcomes = bench.tests(bug, changed, fresh_seeds())
    if bad := failed(outcomes):
        for outcome in bad[:SHOWN]:
            out.line(f"✗ {title(outcome)}: {outcome.said}", "red")
        return False
    others = len(outcomes) - VARIANTS
    out.line(f"✓ the bug is gone, in {VARIANTS} cases, and {others} neighbours work as before",
             "green")  # fmt: skip
    return True


def title(outcome: Outcome) -> str:
    """A test's name as words."""
    if outcome.name == bugs.BUG:
        return "the bug is still there"
    return outcome.name.removeprefix(bugs.NEIGHBOUR).replace("_", " ")


def check_lockstep(out: Screen, bug: Bug, bench: Bench, changed: Edits) -> bool:
    bad = lockstep_failures(bench, bug, changed)
    if bad:
        names = some([outcome.name for outcome in bad])
        out.line(f"✗ {len(bad)} of {len(traces())} recorded traces are decided otherwise: {names}",
                 "red")  # fmt: skip
        out.line(bad[0].said)
        return False
    out.line(f"✓ {len(traces())} recorded traces are decided as before", "green")
    return True


# ------------------------------------------------------------------ after the fix
def tell(out: Screen, bug: Bug, bench: Bench, changed: Edits) -> bool:
    """Upstream's number and our fix; then the learner's answers, and ours beside them."""
    sealed, file = bug.sealed(), copy.folder(bug) / copy.PULL_REQUEST
    out.line()
    out.line(f"What it was: {sealed.cause}")
    out.line(f"Upstream: {sealed.upstream}")
    out.line("Our fix:", "bold")
    for line in copy.diff(bench.tree, bugs.edits(bench.tree, sealed.fix)):
        style = {"+": "green", "-": "red"}.get(line[:1], "dim")
        out.line(line, style, 2)
    out.line()
    if not file.exists():
        file.write_text(template(bug), encoding="utf-8")
    open_sections = unanswered(file.read_text(encoding="utf-8"))
    if open_sections:
        out.line(f"next: write {copy.shown(bug, file)}, as you would describe your pull request"
                 f" ({some(open_sections)}: at least {WORDS} words each); then make maintain-check",
                 "bold")  # fmt: skip
        return False
    for key, question in QUESTIONS.items():
        out.line(f"{question} We say: {sealed.answers[key]}")
    put(bug, solved=record_of(bug).get("solved", now()), lines=copy.size(bench.tree, changed),
        text=file.read_text(encoding="utf-8"))  # fmt: skip
    out.line("✓ solved; `make portfolio` shows your text", "green")
    return True


def template(bug: Bug) -> str:
    parts = "\n\n".join(f"## {section}\n" for section in SECTIONS)
    return f"# {bug.title}\n\n{parts}\n"


def unanswered(text: str) -> list[str]:
    """Sections of a pull request's text that are missing, or too short."""
    found = dict(re.findall(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)", text))
    return [name for name in SECTIONS if len(found.get(name, "").split()) < WORDS]
