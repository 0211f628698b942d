"""Generate what learners edit, and never overwrite what they wrote.

`labs/.skeletons.json` (committed) holds, for each generated lab file, git's blob id of the skeleton
it was last generated from. A lab file with that id is untouched and may be regenerated; any other
holds a learner's work. When the skeleton changes, git still has the old one under its id: it is the
common base of a three-way merge, which `labkit.course.update` makes.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from labkit.course import notebook_source
from labkit.course.files import blob_id, read_as_utf8, write_text
from labkit.course.manifest import Course, ManifestError, Phase
from labkit.course.root import find_root
from labkit.course.skeleton import skeleton
from labkit.course.source import SourceError

RECORD = "labs/.skeletons.json"
MAKEFILE = "Makefile"


@dataclass(frozen=True)
class Change:
    """One thing that sync did, or that `--check` found: "written", "kept", "merged", "conflict",
    "stale", "wrong"."""

    kind: str
    path: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.kind:8} {self.path}" + (f"  ({self.why})" if self.why else "")


def generated(phase: Phase) -> dict[Path, str]:
    """Every file of labs/NN-slug with the text a learner starts from."""
    files = {phase.lab_file(module): skeleton(phase, module) for module in phase.modules}
    if phase.notebook:
        book = notebook_source.read(phase)
        files[phase.labs / "lab.ipynb"] = notebook_source.to_ipynb(phase, book, solved=False)
    return files


def links(phase: Phase) -> dict[Path, str]:
    """Every link of solutions/NN-slug with its relative target in the engine."""
    return {
        phase.solutions / phase.lab_file(module).name: os.path.relpath(
            phase.reference_file(module), phase.solutions
        )
        for module in phase.modules
    }


def makefile(phase: Phase) -> dict[Path, str]:
    """The Makefile of labs/NN-slug: it includes the one of all phases. No link: a checkout on
    Windows may have none."""
    there = (phase.labs.parent / MAKEFILE).exists()
    return {phase.labs / MAKEFILE: f"include ../{MAKEFILE}\n"} if there else {}


def read_record(root: Path) -> dict[str, str]:
    path = root / RECORD
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def record_text(record: dict[str, str]) -> str:
    return json.dumps(record, indent=1, sort_keys=True) + "\n"


def text_of(path: Path) -> str | None:
    """What a file holds, as it would be written; None if it is not there.

    Raises:
        ValueError: it is not text.
    """
    if not path.exists():
        return None
    try:
        return read_as_utf8(path) if path.suffix == ".py" else path.read_text(encoding="utf-8")
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as text: {error}") from None


def sync(course: Course) -> list[Change]:
    """Write skeletons, student notebooks and links; files that a learner has edited stay as they
    are."""
    record, changes, known = read_record(course.root), list[Change](), set[str]()
    for phase in course.ready:
        for path, text in generated(phase).items():
            known.add(path.relative_to(course.root).as_posix())
            name, current = path.relative_to(course.root).as_posix(), text_of(path)
            if current is not None and current != text and blob_id(current) != record.get(name):
                changes.append(Change("kept", name, f"edited; `reset {phase.number}` restores it"))
                continue
            if current != text:
                write_text(path, text)
                changes.append(Change("written", name))
            record[name] = blob_id(text)
        for path, text in makefile(phase).items():
            if path.is_symlink() or text_of(path) != text:
                path.unlink(missing_ok=True)
                write_text(path, text)
                changes.append(Change("written", path.relative_to(course.root).as_posix()))
        for path, target in links(phase).items():
            if not path.is_symlink() or os.readlink(path) != target:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                path.symlink_to(target)
                changes.append(Change("written", path.relative_to(course.root).as_posix(), "link"))
    kept = {name: blob for name, blob in record.items() if name in known}
    write_text(course.root / RECORD, record_text(kept))
    return changes


def check(course: Course, strict: bool = False) -> list[Change]:
    """What `sync` would change. `strict` (for CI) also reports lab files that were
    edited."""
    record, problems = read_record(course.root), list[Change]()
    expected: set[str] = set()
    for phase in course.ready:
        for path, text in generated(phase).items():
            name, current = path.relative_to(course.root).as_posix(), text_of(path)
            expected.add(name)
            if record.get(name) != blob_id(text):
                problems.append(Change("stale", name, "its source changed; run `labkit sync`"))
            elif strict and current != text:
                problems.append(Change("wrong", name, "differs from its skeleton"))
        for path, target in links(phase).items():
            if not path.is_symlink() or os.readlink(path) != target:
                name = path.relative_to(course.root).as_posix()
                problems.append(Change("wrong", name, f"must be a link to {target}"))
        for path, text in makefile(phase).items():
            if path.is_symlink() or text_of(path) != text:
                name = path.relative_to(course.root).as_posix()
                problems.append(Change("wrong", name, "run `labkit sync`"))
        problems += _check_solved(phase)
    problems += [
        Change("stale", name, "no phase has it") for name in sorted(set(record) - expected)
    ]
    return problems


def _check_solved(phase: Phase) -> list[Change]:
    """The solved notebook must hold the source's cells, executed, without an error."""
    if not phase.notebook:
        return []
    path = phase.solutions / "lab.ipynb"
    name = path.relative_to(phase.root).as_posix()
    run = f"run `labkit sync --notebooks {phase.number}`"
    if not path.exists():
        return [Change("stale", name, f"missing; {run}")]
    document = json.loads(path.read_text(encoding="utf-8"))
    wanted = json.loads(notebook_source.to_ipynb(phase, notebook_source.read(phase), solved=True))
    if notebook_source.code_of(document) != notebook_source.code_of(wanted):
        return [Change("stale", name, f"its source changed; {run}")]
    cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    if any(cell["execution_count"] is None for cell in cells):
        return [Change("wrong", name, f"was not executed to its end; {run}")]
    if any(o["output_type"] == "error" for cell in cells for o in cell["outputs"]):
        return [Change("wrong", name, f"holds an error; {run}")]
    return []


def execute(phase: Phase, solved: bool = True, seconds: int = 180) -> str:
    """Run a notebook, fresh from its source, top to bottom; the .ipynb with outputs and plots.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised; the message holds the cell and the
        traceback.
    """
    import nbformat
    from nbclient import NotebookClient

    text = notebook_source.to_ipynb(phase, notebook_source.read(phase), solved)
    node = nbformat.reads(text, as_version=4)
    client = NotebookClient(
        node, timeout=seconds, kernel_name="python3", record_timing=False,
        resources={"metadata": {"path": str(phase.folder)}},
    )  # fmt: skip
    client.execute()
    node.metadata.language_info = {"name": "python"}
    return str(nbformat.writes(node)) + "\n"


def main(
    check_only: bool = typer.Option(
        False, "--check", help="change nothing; fail if anything is stale"
    ),
    strict: bool = typer.Option(False, help="with --check: edited lab files count too (for CI)"),
    notebooks: list[str] = typer.Option([], help="phases whose solved notebook is executed anew"),
) -> None:
    """Generate skeletons, student notebooks and links from the engine and the manifests."""
    course = Course(find_root())
    try:
        if check_only:
            problems = check(course, strict)
            for problem in problems:
                print(problem)
            print(f"{len(course.ready)} phases checked, {len(problems)} problems")
            raise typer.Exit(1 if problems else 0)
        for change in sync(course):
            print(change)
        for name in notebooks:
            path = course.phase(name).solutions / "lab.ipynb"
            write_text(path, execute(course.phase(name)))
            print(Change("executed", path.relative_to(course.root).as_posix()))
    except (ManifestError, SourceError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
