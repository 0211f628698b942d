"""`make student-dist`: the tree that an instructor hands out, and the key, which is not handed out.

    python -m labkit student-dist --out ../handout    # writes ../handout and ../handout.key
    python -m labkit unseal ../handout.key            # inside that tree: opens its hidden pack

Left out are the hidden suites, the solutions and most of the project's own tests. What of
these a self-learner may one day want (`PACKED`) goes along in one sealed file. The engine stays
whole: every lab runs beside it, so it is no secret, and docs/instructors.md says what follows.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import typer

from labkit.course import sync
from labkit.course.console import course, polite
from labkit.course.files import entries_as_json, git, write_text
from labkit.course.manifest import Course
from labkit.grading.result import hash_suite

PACKED = ("tests/hidden", "tests/corpora/mutants", "tests/corpora/hunts", "solutions")
"""What the sealed pack holds."""
LEFT_OUT = ("solutions", "tests", "autograder", ".github", ".ci")
KEPT_TESTS = (
    "tests/conftest.py",
    "tests/Makefile",
    "tests/public",
    "tests/engine",
    "tests/conformance",
    "tests/corpora/upstream_bugs",
)
"""Of the tests only these: a new folder is secret until it is named here."""
PACK = "tests/hidden.sealed"
WORKFLOW = ".github/classroom/autograding.yml"


class SealError(ValueError):
    """A pack that cannot be sealed or opened; says why and what to do."""


# ---------------------------------------------------------------- the sealed pack
def new_key(path: Path) -> bytes:
    """The key in this file; a fresh one, readable by its owner only, if there is none yet."""
    from cryptography.fernet import Fernet

    if path.exists():
        return path.read_bytes().strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    key = Fernet.generate_key()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key + b"\n")
    return key


def seal(root: Path, names: Iterable[str], key: bytes) -> bytes:
    """Some folders of a checkout as one encrypted and authenticated file (Fernet: AES and HMAC).

    Raises:
        SealError: the key is no key.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in names:
            archive.add(root / name, name, filter=_without_caches)
    return _fernet(key).encrypt(buffer.getvalue())


def unseal(pack: bytes, key: bytes, root: Path) -> list[str]:
    """Unpack a sealed file into a checkout; the names that it held.

    Raises:
        SealError: another key, or a pack that was changed.
    """
    from cryptography.fernet import InvalidToken

    try:
        data = _fernet(key).decrypt(pack)
    except InvalidToken:
        raise SealError("this key does not open this pack, or the pack was changed") from None
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        archive.extractall(root, filter="data")
        return archive.getnames()


def _fernet(key: bytes):  # type: ignore[no-untyped-def]
    from cryptography.fernet import Fernet

    try:
        return Fernet(key)
    except ValueError:
        text = "the key must be one line of 44 characters, as student-dist wrote it"
        raise SealError(text) from None


def _without_caches(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return None if "__pycache__" in PurePosixPath(info.name).parts else info


# ---------------------------------------------------------------- the tree
def tracked(root: Path) -> list[str]:
    """The files that belong to the course, by git.

    Raises:
        ValueError: this is no git checkout.
    """
    listed = git(root, "ls-files", "-z")
    if not listed:
        raise ValueError(f"{root} is no git checkout; clone the repository and try again there")
    return [name for name in listed.split("\0") if name and (root / name).is_file()]


def handed_out(name: str, walkthroughs: bool) -> bool:
    """Whether a file of the course goes into the tree as it is."""
    if walkthroughs and name.startswith("solutions/") and name.endswith("/WALKTHROUGH.md"):
        return True
    return _below(name, KEPT_TESTS) or not _below(name, LEFT_OUT)


def _below(name: str, folders: Iterable[str]) -> bool:
    return any(name == folder or name.startswith(f"{folder}/") for folder in folders)


def write_tree(root: Path, out: Path, walkthroughs: bool) -> int:
    """Copy what is handed out, with untouched skeletons; the number of files."""
    names = [name for name in tracked(root) if handed_out(name, walkthroughs)]
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, out / name)
    for phase in Course(out).ready:
        for path, text in sync.generated(phase).items():
            write_text(path, text)
        mistakes = f"tests/corpora/mutants/{phase.slug}.toml"
        public_mutants(root / mistakes, out / mistakes)
    return len(names)


def public_mutants(path: Path, out: Path) -> None:
    """Copy the mistakes that `make lab-NN` explains, without those that only the hidden suite can
    see."""
    if not path.exists():
        return
    entries = re.split(r"(?m)^(?=\[\[mutants\]\])", path.read_text(encoding="utf-8"))
    kept = [entry for entry in entries if not re.search(r"(?m)^hidden_only = true", entry)]
    write_text(out, "".join(kept).rstrip() + "\n")
    names = re.findall(r'(?m)^name = "(.+)"', "".join(kept))
    vectors = path.with_suffix(".json")
    if vectors.exists():
        public = json.loads(vectors.read_text(encoding="utf-8"))["public"]
        shown = {name: public[name] for name in names if name in public}
        document = {"hidden": {}, "public": dict(sorted(shown.items()))}
        write_text(out.with_suffix(".json"), entries_as_json(document))
    faults = path.with_suffix(".faults.json")
    if faults.exists():
        recorded = json.loads(faults.read_text(encoding="utf-8"))
        shown = {name: recorded[name] for name in names if name in recorded}
        write_text(out.with_suffix(".faults.json"), entries_as_json(shown))


NOTE = """# This copy of the course

Handed out by your instructor from commit {commit}. Everything that you need is here: start with
`make doctor`, then `make lab-00`.

What is not here: the hidden suites, which grade you, and the solutions{but}. They lie sealed in
`{pack}`. Once your instructor gives you the key, `python3 -m labkit unseal KEYFILE` opens them, and
`make grade-NN` works.

The engine in `mini_vllm/` is whole, because your modules run inside it. It answers every exercise.
Reading it before you have tried takes the exercise away from you, and grading reports a function
that equals it.

`make test` is the project's own and expects what is left out here; `make lab-NN` is yours.
"""


def classroom_workflow(root: Path, phase: str) -> str:
    """The workflow for GitHub Classroom, for one phase."""
    text = (root / WORKFLOW).read_text(encoding="utf-8")
    return re.sub(r'(?m)^(  PHASE: )"\d\d"', rf'\g<1>"{phase}"', text)


def pack_course(root: Path, out: Path, key: bytes, walkthroughs: bool, classroom: str = "") -> int:
    """Write the whole tree with its sealed pack; the number of files.

    Raises:
        ValueError: the folder has something in it already, or `root` is no git checkout.
    """
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; remove it, or give another folder with --out")
    count = write_tree(root, out, walkthroughs)
    (out / PACK).write_bytes(seal(root, PACKED, key) + b"\n")
    commit = (git(root, "rev-parse", "--short", "HEAD") or "unknown").strip()
    but = ", but for the walkthroughs" if walkthroughs else ""
    write_text(out / "HANDOUT.md", NOTE.format(commit=commit, but=but, pack=PACK))
    if classroom:
        workflow = classroom_workflow(root, course().phase(classroom).number)
        write_text(out / ".github" / "workflows" / "classroom.yml", workflow)
    return count


@polite
def main(
    out: Path = typer.Option(Path("dist/student"), help="an empty or new folder"),
    key: Path = typer.Option(None, help="the key's file, made if missing; default: OUT.key"),
    walkthroughs: bool = typer.Option(False, "--walkthroughs", help="hand these out too"),
    classroom: str = typer.Option("", help="add GitHub Classroom's workflow for this phase"),
) -> None:
    """Write the tree for students, and the key of its hidden pack beside it."""
    root, path = course().root, key or out.with_name(f"{out.name}.key")
    if path.resolve().is_relative_to(out.resolve()):
        raise ValueError(f"{path} lies in the tree that you hand out; keep the key elsewhere")
    count = pack_course(root, out, new_key(path), walkthroughs, classroom)
    suites = ", ".join(phase.number for phase in course().ready if phase.hidden_tests.exists())
    print(f"{count} files in {out}; sealed in {PACK}: the hidden suites of {suites}")
    print(f"the key is {path}: keep it to yourself")
    print(f"try it as a student: cd {out} && make doctor && make demo && make lab-00")


@polite
def open_pack(
    key: Path = typer.Argument(help="the key's file", dir_okay=False),
    pack: Path = typer.Option(None, help=f"default: {PACK}"),
) -> None:
    """Open the sealed pack of this tree: hidden suites, all named mistakes, solutions."""
    root = course().root
    try:
        names = unseal((pack or root / PACK).read_bytes(), key.read_bytes().strip(), root)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        raise typer.Exit(2) from None
    for phase in course().ready:
        if phase.hidden_tests.exists():
            print(f"{phase.slug}: hidden suite {hash_suite(phase.hidden_tests)[:12]}")
    print(f"{len(names)} names opened; `make grade-NN` runs the hidden suites")
