"""`python -m labkit receipt`: what a student has passed, signed by the class, for all to check.

    labkit receipt key class                     makes class (keep it) and class.pub (give it away)
    labkit receipt write ada results/*/ada.json --key class    makes ada.receipt, ada.receipt.sig
    labkit receipt check ada.receipt --key class.pub           says what it holds, or what is wrong

The signature is OpenSSH's, by an Ed25519 key: `ssh-keygen -Y` is on every laptop, so a reader can
check a receipt without this course or a package of Python, and need not trust our code. docs/
instructors.md has the one line for it.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from labkit.course import finish
from labkit.course.console import Screen, course, polite
from labkit.course.files import git, write_text
from labkit.course.manifest import Course
from labkit.grading.result import GradeResult, hash_suite, load, now

NAMESPACE = "receipt@mini_vllm"
"""OpenSSH's word for what a signature is for: one made for something else is refused."""
SIGNER = "class"
JUDGES = ("labkit", "mini_vllm", "phases", "tests/hidden")
"""What a grade comes of, beside the submission."""
PHASE = ("phase", "earned", "points", "tasks", "seed", "suite", "files", "isolation", "graded")


class ReceiptError(ValueError):
    """A receipt or a key that cannot be used; the message says what is wrong and what to do."""


app = typer.Typer(add_completion=False, help="Sign what was passed, and check what was signed.")
KEY = typer.Option(..., "--key", help="the key's file")


@app.command("key")
@polite
def make_key(
    path: Path = typer.Argument(help="the private key's file; .pub is put beside it"),
) -> None:
    """Make the key pair of a class."""
    if path.exists():
        raise ReceiptError(f"{path} is there already; a second key would not check old receipts")
    _ssh_keygen("-q", "-t", "ed25519", "-N", "", "-C", SIGNER, "-f", str(path))
    print(f"wrote {path}: keep it to yourself")
    print(f"wrote {path}.pub: give it to the class")


@app.command("write")
@polite
def write(
    name: str = typer.Argument(help="whose receipt it is, as it shall stand on it"),
    results: list[Path] = typer.Argument(help="result files, one or more a phase"),
    key: Path = KEY,
    out: Path = typer.Option(None, "--out", help="the receipt; default: NAME.receipt"),
) -> None:
    """Write a receipt of some results, and its signature beside it."""
    path = out or Path(f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.') or 'student'}.receipt")
    found = make(course(), name, [load(file) for file in results])
    refuse_what_is_not_committed(course().root)
    write_text(path, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    path.with_name(f"{path.name}.sig").unlink(missing_ok=True)
    _ssh_keygen("-Y", "sign", "-q", "-n", NAMESPACE, "-f", str(key), str(path))
    show(Screen(), found)
    print(f"wrote {path} and {path}.sig")


@app.command("check")
@polite
def check_command(
    path: Path = typer.Argument(help="the receipt; its signature lies beside it, with .sig"),
    key: Path = KEY,
) -> None:
    """Say what a receipt holds, if the class has signed it so."""
    show(Screen(), check(path, key))
    Screen().line("signed with this key, and not changed since", "green")


def make(known: Course, name: str, results: Sequence[GradeResult]) -> dict[str, Any]:
    """The receipt of some results; of several of one phase the best counts.

    Raises:
        ReceiptError: no result, one that was not judged to its end, or one that another commit's
            hidden suite has judged, so that this commit cannot be named.
    """
    if not results:
        raise ReceiptError("there is no result to write a receipt of")
    commit = (git(known.root, "rev-parse", "HEAD") or "").strip()
    if not commit:
        raise ReceiptError(f"{known.root} is no git checkout, so a receipt cannot name its commit")
    best: dict[str, GradeResult] = {}
    for result in results:
        _fits(known, result)
        old = best.get(result.phase)
        if old is None or result.earned > old.earned:
            best[result.phase] = result
    done = {slug[:2] for slug, result in best.items() if result.passed}
    return {
        "receipt": 1,
        "name": name,
        "commit": commit,
        "written": now(),
        "finish lines": finish.reached(known, done),
        "phases": [_phase(best[slug]) for slug in sorted(best)],
    }


def refuse_what_is_not_committed(root: Path) -> None:
    """A receipt names the commit that judged; so what judges must be that commit's.

    Raises:
        ReceiptError: a file of JUDGES is not as the commit has it.
    """
    changed = (git(root, "status", "--porcelain", "--", *JUDGES) or "").splitlines()
    if changed:
        raise ReceiptError(
            f"{changed[0][3:]} is not as the commit has it ({len(changed)} such in"
            f" {', '.join(JUDGES)}), so the commit on the receipt would not be what judged; commit"
            " or put back, and grade again"
        )


def _fits(known: Course, result: GradeResult) -> None:
    if result.status != "graded" or result.seed.value is None:
        raise ReceiptError(
            f"the result of {result.phase} has the status {result.status!r}; only what was judged"
            " to its end can be signed"
        )
    suite = hash_suite(known.phase(result.phase).hidden_tests)
    if suite != result.suite:
        raise ReceiptError(
            f"{result.phase} was judged by the suite {result.suite[:12]}, and this checkout has"
            f" {suite[:12]}; check out the commit that judged, or grade again"
        )


def _phase(result: GradeResult) -> dict[str, Any]:
    return {
        "phase": result.phase,
        "earned": result.earned,
        "points": result.points,
        "tasks": [group.id for group in result.groups if group.status == "passed"],
        "seed": result.seed.value,
        "suite": result.suite,
        "files": result.submission,
        "isolation": result.isolation,
        "graded": result.started,
    }


def check(path: Path, key: Path) -> dict[str, Any]:
    """What a receipt holds.

    Raises:
        ReceiptError: another key has signed it, it was changed, or it is no receipt.
    """
    text, signature = path.read_bytes(), path.with_name(f"{path.name}.sig")
    if not signature.is_file():
        raise ReceiptError(f"{signature} is missing; it comes with the receipt")
    public = key.read_text(encoding="utf-8").strip()
    if not public.startswith("ssh-"):
        raise ReceiptError(f"{key} holds no public key; it is the file that ends in .pub")
    with tempfile.TemporaryDirectory() as folder:
        signers = Path(folder, "signers")
        signers.write_text(f"{SIGNER} {public}\n", encoding="utf-8")
        words = ["-Y", "verify", "-f", str(signers), "-I", SIGNER, "-n", NAMESPACE]
        try:
            _ssh_keygen(*words, "-s", str(signature), input=text)
        except ReceiptError:
            raise ReceiptError(
                f"{path} is not what this key has signed: it was changed, or another key signed it"
            ) from None
    try:
        found = json.loads(text)
        if found["receipt"] != 1 or any(set(PHASE) - set(row) for row in found["phases"]):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise ReceiptError(f"{path} is signed, and is no receipt that this labkit reads") from None
    return found


def show(out: Screen, found: dict[str, Any]) -> None:
    """A receipt in a few lines."""
    lines = ", ".join(found["finish lines"]) or "no finish line yet"
    out.line(f"{found['name']}: {lines}", "bold")
    out.line(f"judged by commit {found['commit'][:12]}, written {found['written'][:16]} UTC")
    for row in found["phases"]:
        whole = "✓" if row["earned"] == row["points"] else " "
        out.line(
            f"{whole} {row['phase']:28} {row['earned']:>4g}/{row['points']:<4g} points"
            f" · seed {row['seed']}"
        )


def _ssh_keygen(*words: str, input: bytes | None = None) -> None:
    try:
        done = subprocess.run(["ssh-keygen", *words], input=input, capture_output=True, timeout=60)
    except FileNotFoundError:
        raise ReceiptError(
            "ssh-keygen is missing; it comes with OpenSSH (apt install openssh-client)"
        ) from None
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise ReceiptError(f"ssh-keygen {' '.join(words[:2])}: {said}")
