"""Change requests: after passing, a requirement changes, as it does at work.

`phases/NN-slug/changes.toml` holds what is asked; `solutions/NN-slug/changes.toml` one solution,
as edits of the reference, and a discussion. The tests are `change_K.py` beside the public and the
hidden tests of the phase. A change is made in `changes/NN.K/`: the learner's files are never
touched.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.course.files import backup, write_text
from labkit.course.manifest import Course, ManifestError, Phase
from labkit.judge import public
from labkit.practice import copies
from labkit.practice.counted import changes_file

KEYS = {"title", "module", "functions", "request"}


@dataclass(frozen=True)
class Change:
    """One change of a requirement.

    Attributes:
        id: "03.1".
        module: the module to change; functions: where it most probably happens.
        request: what is asked, with a worked state.
    """

    phase: Phase
    id: str
    title: str
    module: str
    functions: tuple[str, ...]
    request: str

    @property
    def number(self) -> int:
        return int(self.id.partition(".")[2])

    @property
    def folder(self) -> Path:
        return self.phase.root / "changes" / self.id

    @property
    def file(self) -> Path:
        return self.folder / f"{self.module.rpartition('.')[2]}.py"

    @property
    def public_tests(self) -> Path:
        return self.phase.public_tests / f"change_{self.number}.py"

    @property
    def hidden_tests(self) -> Path:
        return self.phase.hidden_tests / f"change_{self.number}.py"

    def shown(self, path: Path) -> str:
        return path.relative_to(self.phase.root).as_posix()


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["changes"]
    return entries


def load(phase: Phase) -> list[Change]:
    """The phase's change requests; [] if it has none.

    Raises:
        ManifestError: an entry is incomplete, or names no module of the phase.
    """
    changes = []
    for number, entry in enumerate(_read(changes_file(phase)), 1):
        where = f"phases/{phase.slug}/changes.toml: change {number}"
        if set(entry) != KEYS:
            raise ManifestError(
                f"{where}: its keys are {', '.join(sorted(entry))}; they must be"
                f" {', '.join(sorted(KEYS))}"
            )
        if entry["module"] not in phase.modules:
            raise ManifestError(
                f"{where}: {entry['module']} is no module of the phase; those are"
                f" {', '.join(phase.modules)}"
            )
        changes.append(
            Change(
                phase,
                f"{phase.number}.{number}",
                entry["title"],
                entry["module"],
                tuple(entry["functions"]),
                entry["request"].strip(),
            )
        )
    return changes


def find(course: Course, name: str) -> Change:
    """The change called "03.1"; ManifestError if there is none."""
    return copies.find(course, name, load, "change")


def starting_text(change: Change) -> str:
    """The learner's module if its tasks passed, else the reference's, which solves them:
    `copies.may_open` asks first."""
    mine = copies.own_text(change.phase, change.module)
    if mine is not None:
        return mine
    return change.phase.reference_file(change.module).read_text(encoding="utf-8")


def begin(change: Change) -> Path | None:
    """Write the working copy and the request; returns the backup of a copy that was there."""
    kept = backup(change.phase.root, [change.file])
    write_text(change.file, starting_text(change))
    write_text(change.folder / "REQUEST.md", f"# {change.title}\n\n{change.request}\n")
    return kept


def judge(change: Change, tests: Path) -> public.PhaseResult:
    """One file of tests on the working copy."""
    return public.run_tests(change.phase, [tests], {change.module: str(change.file)})


# ------------------------------------------------------------------ the solution
def solution(change: Change) -> dict[str, Any]:
    """What `solutions/` says of it: `edits` and `discussion`.

    Raises:
        ManifestError: there is no solution here.
    """
    entries = _read(change.phase.solutions / "changes.toml")
    if len(entries) < change.number:
        raise ManifestError(f"solutions/{change.phase.slug} has no solution of change {change.id}")
    return entries[change.number - 1]


def solved_text(change: Change) -> str:
    """The reference with the solution's edits in it.

    Raises:
        ManifestError: an edit's search text does not stand there once.
    """
    text = change.phase.reference_file(change.module).read_text(encoding="utf-8")
    for edit in solution(change)["edits"]:
        count = text.count(edit["search"])
        if count != 1:
            raise ManifestError(
                f"solutions/{change.phase.slug}/changes.toml: change {change.number}: a search text"
                f" is {count} times in {change.module}; it must be there once:\n{edit['search']}"
            )
        text = text.replace(edit["search"], edit["replace"])
    return text
