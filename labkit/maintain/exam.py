"""The exam of the maintainer's track: three bugs for a student, and a verdict on the answers.

    python -m labkit maintain-exam draw exam.key 2026-autumn ada bob
    python -m labkit maintain-exam give exam/ exam.key 2026-autumn ada bob
    python -m labkit grade-class exam submissions/ --key exam.key --term 2026-autumn

Which bugs a student gets follows from key, term and name: the same again each time, and not to be
guessed without the key. The pool leaves out bugs that this repository answers elsewhere. Each copy
that a student gets holds the bug, and a sibling: the same mistake at another place.
"""

from __future__ import annotations

import hmac
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import typer

from labkit.course.console import course, polite
from labkit.course.files import write_text
from labkit.maintain import bugs, copy, judge, locked
from labkit.maintain.bugs import Bug, CatalogueError, Edits
from labkit.maintain.judge import LIMIT, Bench, BenchError
from labkit.sandbox import isolation
from labkit.sandbox.build import SubmissionError, declared

LEVELS = ((3, 5), (2, 2), (1, 1))
"""Difficulty of the three bugs, the hardest first: there are fewest of those."""
PATCHED = re.compile(r"(?m)^\+\+\+ (?:b/)?(\S+)")
app = typer.Typer(add_completion=False, no_args_is_help=True, help="Draw and grade the exam.")


def pool(root: Path) -> list[Bug]:
    """The bugs that an exam may ask for."""
    return [bug for bug in bugs.load(root) if bug.sealed().exam]


def draw(root: Path, key: bytes, term: str, student: str) -> list[Bug]:
    """Three bugs of different phases and files, one of each level; the easiest first.

    Raises:
        CatalogueError: the pool has no such three.
    """

    def turn(bug: Bug) -> bytes:
        return hmac.digest(key, "\0".join((term, student, bug.id)).encode(), "sha256")

    order, chosen = sorted(pool(root), key=turn), list[Bug]()
    for least, most in LEVELS:
        fitting = (
            bug
            for bug in order
            if least <= bug.difficulty <= most
            and all(bug.phase != other.phase and not files(bug) & files(other) for other in chosen)
        )
        found = next(fitting, None)
        if found is None:
            raise CatalogueError(
                f"the pool has no bug of difficulty {least} to {most} beside "
                f"{', '.join(bug.id for bug in chosen)}"
            )
        chosen.append(found)
    return chosen[::-1]


def files(bug: Bug) -> set[str]:
    """The files that our fix changes."""
    return {path for path, _, _ in bug.sealed().fix}


# ------------------------------------------------------------------ what a student gets
def planted(tree: Path, bug: Bug) -> dict[str, str]:
    """The files of the pinned tree that an exam's copy has otherwise.

    Raises:
        CatalogueError: the bug has no sibling.
    """
    sibling = bug.sealed().sibling
    if sibling is None:
        raise CatalogueError(f"bug {bug.id} has no sibling; an exam's bug needs one")
    return bugs.edits(tree, sibling.plant)


def give(bug: Bug, tree: Path, place: Path) -> None:
    """Write a student's copy, with the sibling in it; its history begins there."""
    sibling = bug.sealed().sibling
    assert sibling is not None
    copy.begin(bug, tree, place, planted(tree, bug), SECOND.format(where=sibling.where))


SECOND = """## The same mistake, once more

This copy has the same kind of mistake at a second place, {where}. vLLM does not have it there. Mend
it, too, in the same `{patch}`; no report tells its symptom.

`make maintain-{{id}} ARGS="--patch"` writes `{patch}`.
""".replace("{patch}", copy.PATCH)


# ------------------------------------------------------------------ what was handed in
ABSENT = "not handed in"
NAMES = ("test", "fix", "sibling", "words")
"""What is said of; "words" is how many the text of the pull request has."""


def patched(base: Mapping[str, str], tree: Path, patch: str) -> dict[str, str]:
    """The files of a copy as a patch leaves them, those that it does not touch included.

    Args:
        base: the files of the copy that are not the tree's.

    Raises:
        CatalogueError: it touches what it must not, or does not apply.
    """
    names = PATCHED.findall(patch)
    for name in names:
        if not re.fullmatch(r"vllm(/\w+)+\.py", name) or not (tree / name).is_file():
            raise CatalogueError(f"{copy.PATCH} changes {name}; it must be a file that vllm/ has")
    if not names:
        raise CatalogueError(f"{copy.PATCH} changes no file")
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            text = base.get(name) or (tree / name).read_text(encoding="utf-8")
            write_text(Path(scratch) / name, text)
        done = subprocess.run(
            ["git", "apply", "-"], input=patch, cwd=scratch, capture_output=True, text=True
        )
        if done.returncode:
            raise CatalogueError(f"{copy.PATCH} does not apply: {done.stderr.strip()[:200]}")
        return {**base, **{name: (Path(scratch) / name).read_text("utf-8") for name in names}}


def handed_in(folder: Path) -> dict[str, str]:
    """The texts that lie in a folder; links and what is too large are no texts.

    Raises:
        SubmissionError: a file cannot be taken.
    """
    names = (copy.TEST, copy.PATCH, copy.PULL_REQUEST)
    found = declared({name: folder / name for name in names if (folder / name).exists()})
    return {name: data.decode("utf-8", "replace") for name, data in found.items()}


def verdict(bench: Bench, bug: Bug, folder: Path) -> dict[str, str]:
    """What is said of one bug: of the test, of the fix, of the sibling, of the words."""
    found = dict.fromkeys(NAMES, ABSENT)
    try:
        texts = handed_in(folder / f"{bug.id}-{bug.name}")
    except SubmissionError as error:
        return found | {"fix": str(error)}
    if copy.PULL_REQUEST in texts:
        found["text"] = texts[copy.PULL_REQUEST]
        found["words"] = str(len(found["text"].split()))
    if copy.TEST in texts:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / copy.TEST
            write_text(file, texts[copy.TEST])
            found["test"] = judge.own_test_verdict(bench, bug, file) or "accepted"
    if copy.PATCH in texts:
        try:
            edits = patched(planted(bench.tree, bug), bench.tree, texts[copy.PATCH])
            found["fix"] = of_fix(bench, bug, edits)
            found["sibling"] = of_sibling(bench, bug, edits)
        except CatalogueError as error:
            found["fix"] = found["sibling"] = str(error)
    return found


def of_fix(bench: Bench, bug: Bug, edits: Edits) -> str:
    """The verdict on the bug itself, in a tree in which the sibling is mended for the student."""
    sibling = bug.sealed().sibling
    alone = sibling.undone(edits) if sibling else edits
    if (lines := copy.size(bench.tree, alone)) > LIMIT:
        return f"{lines} changed lines; the limit is {LIMIT}"
    if bad := judge.failed(bench.tests(bug, alone, judge.fresh_seeds())):
        return f"{bad[0].name} fails: {bad[0].said}"
    if bad := judge.lockstep_failures(bench, bug, alone):
        return f"{len(bad)} recorded traces are decided otherwise, {bad[0].name} first"
    return "right"


def of_sibling(bench: Bench, bug: Bug, edits: Edits) -> str:
    bad = judge.failed(bench.sibling(bug, edits, judge.fresh_seeds()))
    return f"it is still there: {bad[0].said}" if bad else "right"


def grade(root: Path, chosen: Iterable[Bug], folder: Path, rung: str) -> dict[str, dict[str, str]]:
    """The verdicts on one student's bugs. Each has a process of its own, so that code that ends or
    holds it costs the others nothing.

    Raises:
        BenchError: vLLM's files do not run here.
    """
    found = {}
    for bug in chosen:
        if not (folder / f"{bug.id}-{bug.name}").is_dir():
            found[bug.id] = dict.fromkeys(NAMES, ABSENT)
            continue
        with Bench(root, isolation.LADDER[rung]) as bench:
            if (first := bench.tests(bug, {}, [0])[0]).name == "import":
                raise BenchError(f"vLLM cannot be imported here: {first.said}")
            try:
                found[bug.id] = verdict(bench, bug, folder)
            except BenchError as error:  # what was handed in has ended the process
                found[bug.id] = dict.fromkeys(NAMES, str(error).splitlines()[0])
    return found


# ------------------------------------------------------------------ commands
def read_key(path: Path) -> bytes:
    key = path.read_bytes().strip()
    if len(key) < 16:
        raise CatalogueError(f"{path} holds {len(key)} bytes; an exam's key has at least 16")
    return key


@app.command("draw")
@polite
def draw_command(
    key: Path = typer.Argument(help="a file with a secret of at least 16 bytes", dir_okay=False),
    term: str = typer.Argument(help="such as 2026-autumn"),
    students: list[str] = typer.Argument(help="their names, as you will grade them"),
) -> None:
    """Which three bugs each student gets."""
    root, secret = course().root, read_key(key)
    for student in students:
        chosen = draw(root, secret, term, student)
        print(f"{student}: {'  '.join(f'{bug.id}-{bug.name}' for bug in chosen)}")


@app.command("give")
@polite
def give_command(
    out: Path = typer.Argument(help="a folder for each student is made in it", file_okay=False),
    key: Path = typer.Argument(help="the key of the draw", dir_okay=False),
    term: str = typer.Argument(help="the term of the draw"),
    students: list[str] = typer.Argument(help="their names, as you will grade them"),
) -> None:
    """Write each student's three copies, 28 MB each; they go into hunts/upstream/."""
    root, secret = course().root, read_key(key)
    tree = judge.tree_of(root)
    for student in students:
        for bug in draw(root, secret, term, student):
            give(bug, tree, out / student / f"{bug.id}-{bug.name}")
        print(out / student)


@app.command("grade")
@polite
def grade_command(
    folder: Path = typer.Argument(help="one student's: 22-same-picture-twice/ and so on lie in it"),
    key: Path = typer.Argument(help="the key of the draw", dir_okay=False),
    term: str = typer.Argument(help="the term of the draw"),
    student: str = typer.Argument(help="the name in the draw"),
    isolate: str = typer.Option(isolation.AUTO, "--isolation", help="as for grade-class"),
    out: Path = typer.Option(None, "--result", help="write the result there as JSON, too"),
) -> None:
    """Judge one student's three bugs, in the strongest isolation that works here."""
    root = course().root
    rung, unavailable = locked.choose(judge.tree_of(root), isolate)
    found = grade(root, draw(root, read_key(key), term, student), folder, rung.name)
    for name, rows in found.items():
        print(f"{name}: test {rows['test']}; fix {rows['fix']}; sibling {rows['sibling']}")
    said = isolation.spoken(rung.name, unavailable)
    print(f"isolation: {said}")
    if out:
        write_text(out, json.dumps({"isolation": said, "bugs": found}, indent=1) + "\n")
