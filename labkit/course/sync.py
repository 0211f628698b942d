"""Generate what learners edit, and never overwrite what they wrote.

`labs/.skeletons.json` (committed) holds, for each generated lab file, git's blob id of the skeleton
it was last generated from. A lab file with that id is untouched and may be regenerated; any other
is somebody's work. When the skeleton changes, git still has the old one under its id: it is the
common base of a three-way merge.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import typer

from labkit.course import notebook_source, source
from labkit.course.files import backup, blob_id, git, write_text
from labkit.course.manifest import Course, ManifestError, Phase
from labkit.course.root import find_root
from labkit.course.skeleton import is_hole, skeleton
from labkit.course.source import SourceError

RECORD = "labs/.skeletons.json"


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


def read_record(root: Path) -> dict[str, str]:
    path = root / RECORD
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _write_record(root: Path, record: dict[str, str]) -> None:
    write_text(root / RECORD, json.dumps(record, indent=1, sort_keys=True) + "\n")


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def sync(course: Course) -> list[Change]:
    """Write skeletons, student notebooks and links; files that a learner has edited stay as they
    are."""
    record, changes, known = read_record(course.root), list[Change](), set[str]()
    for phase in course.ready:
        for path, text in generated(phase).items():
            known.add(path.relative_to(course.root).as_posix())
            name, current = path.relative_to(course.root).as_posix(), _text(path)
            if current is not None and current != text and blob_id(current) != record.get(name):
                changes.append(Change("kept", name, f"edited; `reset {phase.number}` restores it"))
                continue
            if current != text:
                write_text(path, text)
                changes.append(Change("written", name))
            record[name] = blob_id(text)
        for path, target in links(phase).items():
            if not path.is_symlink() or os.readlink(path) != target:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                path.symlink_to(target)
                changes.append(Change("written", path.relative_to(course.root).as_posix(), "link"))
    _write_record(course.root, {name: blob for name, blob in record.items() if name in known})
    return changes


def check(course: Course, strict: bool = False) -> list[Change]:
    """What `sync` would change. `strict` (for CI) also reports lab files that somebody has
    edited."""
    record, problems = read_record(course.root), list[Change]()
    expected: set[str] = set()
    for phase in course.ready:
        for path, text in generated(phase).items():
            name, current = path.relative_to(course.root).as_posix(), _text(path)
            expected.add(name)
            if record.get(name) != blob_id(text):
                problems.append(Change("stale", name, "its source changed; run `labkit sync`"))
            elif strict and current != text:
                problems.append(Change("wrong", name, "differs from its skeleton"))
        for path, target in links(phase).items():
            if not path.is_symlink() or os.readlink(path) != target:
                name = path.relative_to(course.root).as_posix()
                problems.append(Change("wrong", name, f"must be a link to {target}"))
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


def update(course: Course, pull: bool = True) -> list[Change]:
    """Fetch a newer course and merge its new skeletons into the learner's files; every file is
    backed up first.

    Edits that the learner has committed are merged by git itself; the others are set aside while
    git pulls.
    """
    root, before = course.root, read_record(course.root)
    mine = {}
    for name, recorded in before.items():
        text = _text(root / name)
        if text is not None and blob_id(text) != recorded:
            mine[name] = text
    folder = backup(root, [root / name for name in mine])
    changes = [Change("backup", folder.relative_to(root).as_posix())] if folder else []
    if pull:
        committed = {n for n in mine if git(root, "diff", "--quiet", "HEAD", "--", n) is not None}
        for name in mine.keys() - committed:
            git(root, "checkout", "HEAD", "--", name)
        if git(root, "pull", "--no-rebase", "--no-edit") is None:
            git(root, "merge", "--abort")
            for name in mine.keys() - committed:
                write_text(root / name, mine[name])
            return [
                *changes,
                Change("wrong", ".", "`git pull` failed; your files are as they were"),
            ]
        for name in committed:
            mine[name] = _text(root / name) or mine[name]
    fresh = Course(root)
    for phase in fresh.ready:
        for path, text in generated(phase).items():
            name = path.relative_to(root).as_posix()
            if name in mine:
                changes.append(_merge(root, name, mine[name], before[name], text))
    return changes + [change for change in sync(fresh) if change.kind == "written"]


def _merge(root: Path, name: str, mine: str, base_id: str, new: str) -> Change:
    base = git(root, "cat-file", "blob", base_id)
    record = read_record(root)
    if base_id == blob_id(new):
        write_text(root / name, mine)
        return Change("kept", name, "its skeleton did not change")
    if base is None or name.endswith(".ipynb"):
        write_text(root / name, mine)
        write_text(root / f"{name}.new", new)
        return Change("kept", name, f"the new skeleton lies beside it as {Path(name).name}.new")
    merged, conflicts = _merge_solved(mine, base, new) or _merge_texts(mine, base, new)
    write_text(root / name, merged)
    _write_record(root, record | {name: blob_id(new)})
    if conflicts:
        return Change("conflict", name, f"{conflicts} place(s) marked <<<<<<< yours")
    return Change("merged", name)


def _merge_texts(mine: str, base: str, new: str) -> tuple[str, int]:
    """Git's merge of three texts, and the number of conflicts marked in it."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, kind) for kind in ("yours", "old-skeleton", "new-skeleton")]
        for file, text in zip(files, (mine, base, new), strict=True):
            file.write_text(text, encoding="utf-8")
        labels = [part for file in files for part in ("-L", file.name)]
        done = subprocess.run(
            ["git", "merge-file", "-p", *labels, *map(str, files)], capture_output=True, text=True
        )
    return done.stdout, done.returncode


def _merge_solved(mine: str, base: str, new: str) -> tuple[str, int] | None:
    """The merge of what is around the holes, with the learner's bodies in it: so a solution never
    stands in the way of what changes beside it. None where that does not work."""
    try:
        holes = [name for name, hole in source.functions(base).items() if is_hole(hole)]
        around, bodies = mine, dict[str, str]()
        for name in holes:
            bodies[name] = source.body_text(mine, source.find(mine, name))
            empty = source.body_text(base, source.find(base, name))
            around = source.replace_body(around, name, empty)
        merged, conflicts = _merge_texts(around, base, new)
        for name, body in bodies.items():
            still = source.functions(merged).get(name)
            if still and not is_hole(source.find(mine, name)):
                merged = source.replace_body(merged, name, body)
    except (SyntaxError, source.SourceError):
        return None
    return None if conflicts else (merged, 0)


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
