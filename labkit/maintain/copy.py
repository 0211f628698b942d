"""The working copy: the pinned tree in `hunts/upstream/`; its git history begins at the pin."""

from __future__ import annotations

import difflib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from labkit.citations.upstream import COMMIT, VERSION
from labkit.course.files import write_text
from labkit.maintain.bugs import Bug

TEST, PULL_REQUEST, REPORT = "test_mine.py", "PULL_REQUEST.md", "REPORT.md"
PATCH = "fix.patch"
OURS = (TEST, PULL_REQUEST, REPORT, PATCH, "__pycache__/")
"""What git does not look at, so that `git diff` shows the fix and nothing else."""
AUTHOR = ("-c", "user.name=mini_vllm", "-c", "user.email=course@localhost")


class CopyError(ValueError):
    """The working copy cannot be judged; the message says what to do."""


def folder(bug: Bug) -> Path:
    return bug.root / "hunts" / "upstream" / f"{bug.id}-{bug.name}"


def shown(bug: Bug, path: Path) -> str:
    return path.relative_to(bug.root).as_posix()


def begin(
    bug: Bug,
    tree: Path,
    place: Path | None = None,
    planted: Mapping[str, str] | None = None,
    more: str = "",
) -> None:
    """Write the copy: the tree as its first commit, the report, and a beginning of a test.

    Args:
        place: where; default: `folder(bug)`.
        planted: files of an exam's copy that are not the tree's.
        more: what an exam's report says besides.

    Raises:
        CopyError: git is not there.
    """
    place = place or folder(bug)
    place.parent.mkdir(parents=True, exist_ok=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(tree / "vllm", place / "vllm", ignore=ignore, dirs_exist_ok=True)
    for path, text in (planted or {}).items():
        write_text(place / path, text)
    git(place, "init", "-q")
    write_text(place / ".git" / "info" / "exclude", "\n".join(OURS) + "\n")
    git(place, "add", "vllm")
    git(place, *AUTHOR, "commit", "-q", "--no-verify", "-m", f"vLLM {VERSION} ({COMMIT})")
    write_text(place / REPORT, report(bug) + (f"\n{more.format(id=bug.id)}" if more else ""))
    write_text(place / TEST, BEGINNING)


def write_patch(place: Path) -> Path:
    """What was changed since the pin, to be handed in."""
    first = git(place, "rev-list", "--max-parents=0", "HEAD").split()[-1]
    write_text(place / PATCH, git(place, "diff", "--no-color", first, "--", "vllm"))
    return place / PATCH


def git(place: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(place), *words], capture_output=True, text=True)
    except FileNotFoundError:
        raise CopyError(
            "git is not installed; the working copy has a history, so it needs it"
        ) from None
    if done.returncode:
        raise CopyError(f"git {words[0]}: {done.stderr.strip()[-300:]}")
    return done.stdout


def report(bug: Bug) -> str:
    return f"""# {bug.title}

{bug.report}

vLLM {VERSION}; phase {bug.phase} teaches what must be understood; difficulty {bug.difficulty} of 5.

## What to do

1. Write `{TEST}`: functions `test_...` that fail because of this bug. `labkit.maintain.rig` gives
   you vLLM's scheduler without a model; other parts of vLLM you import as they are. No GPU and no
   compiled code is needed.
2. Mend the bug below `vllm/`, in at most 40 changed lines. `git diff` shows what you have changed
   since the pin.
3. `make maintain-check` judges the test, then the fix. Run your test by yourself with

       make maintain-{bug.id} ARGS="--test"
"""


BEGINNING = '''"""What the user reports, as a test: red on the pin, green with a right fix."""

# A scene for the scheduler; other parts of vLLM you import as they are.
#
#     from labkit.maintain.rig import make_request, make_scheduler, step
#
#     scheduler = make_scheduler(num_gpu_blocks=10)
#     scheduler.add_request(make_request("a", 40, max_tokens=3))
#     plan, outputs = step(scheduler)
#     assert plan.num_scheduled_tokens == {"a": 40}  # fewer where the prefix cache brought some


def test_what_the_user_reports():
    raise NotImplementedError("write a test that fails because of the bug")
'''


# ------------------------------------------------------------------ what was changed
def edits(place: Path, tree: Path) -> dict[str, str]:
    """Every file below vllm/ that is not as published -> its text.

    Raises:
        CopyError: a file was removed, or is no Python.
    """
    pinned = {path.relative_to(tree).as_posix() for path in tree.glob("vllm/**/*.py")}
    mine = {path.relative_to(place).as_posix() for path in place.glob("vllm/**/*.py")}
    if gone := sorted(pinned - mine):
        raise CopyError(f"{gone[0]} was removed; `git checkout {gone[0]}` brings it back")
    found = {}
    for path in sorted(mine):
        data = (place / path).read_bytes()
        if path in pinned and data == (tree / path).read_bytes():
            continue
        try:
            compile(data, path, "exec")
            found[path] = data.decode("utf-8")
        except (SyntaxError, UnicodeDecodeError) as error:
            raise CopyError(f"{path} is no Python: {error}; mend it first") from None
    return found


def diff(tree: Path, changed: Mapping[str, str]) -> Iterator[str]:
    """A change of the tree, as `git diff` would show it."""
    for path, text in changed.items():
        old = tree / path
        before = old.read_text(encoding="utf-8").splitlines() if old.exists() else []
        yield from difflib.unified_diff(before, text.splitlines(), path, path, n=2, lineterm="")


def size(tree: Path, changed: Mapping[str, str]) -> int:
    """Lines added and lines taken away, together."""
    lines = (line for line in diff(tree, changed) if not line.startswith(("+++", "---")))
    return sum(line[:1] in "+-" for line in lines if line)
