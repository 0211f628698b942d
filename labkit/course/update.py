"""Fetch a newer course, and merge its new skeletons into what the learner has written.

Git merges the engine, the chapters and the tests. The lab files it must not merge: their skeletons
change around the functions that the learner has filled in, and what `labs/.skeletons.json` says
about them counts, not what was committed last. They get a three-way merge of their own, function
by function, whether the learner has committed them or not.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from labkit.course import source
from labkit.course.console import some
from labkit.course.files import NO_GIT, backup, blob_id, git, run_git, write_all, write_text
from labkit.course.manifest import Course
from labkit.course.skeleton import is_hole
from labkit.course.sync import (
    RECORD,
    Change,
    generated,
    read_record,
    record_text,
    sync,
    text_of,
)
from labkit.course.unfinished import Unfinished, found, under_way


class UpdateRefused(Exception):
    """Git could not bring the newer course; the message says why, and what to type."""


def update(course: Course, pull: bool = True) -> list[Change]:
    """Fetch a newer course and merge its new skeletons into the learner's files; every file is
    backed up first, and either all are written or none."""
    root = course.root
    try:
        before = _record(root)
    except UpdateRefused as refused:
        return [Change("wrong", ".", str(refused))]
    mine = {}
    for name, recorded in before.items():
        if (parent := (root / name).parent).exists() and not parent.is_dir():
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(parent))
        text = text_of(root / name)
        if text is not None and blob_id(text) != recorded:
            mine[name] = text
            if line := source.unresolved_merge(text):
                todo = f"mend it, {AGAIN}; `make undo` takes the last update back"
                return [Change("wrong", ".", f"{name}:{line} holds an unresolved merge: {todo}")]
    folder = backup(root, [root / name for name in [*mine, *([RECORD] if mine else [])]])
    changes = [Change("backup", folder.relative_to(root).as_posix())] if folder else []
    try:
        if pull:
            _refuse_unready(root)
        head = (git(root, "rev-parse", "HEAD") or "").strip() if pull else ""
        about = Unfinished(root, "update", folder, head)
        with under_way(about):
            return changes + _update(course, pull, before, mine, folder)
    except UpdateRefused as refused:
        return [*changes, Change("wrong", ".", str(refused))]
    except OSError as error:
        if folder:
            where = folder.relative_to(root).as_posix()
            back = f"your files are as they were, with a copy in {where}"
            lost = f"your files are in {where}; `make undo` brings them back"
            error.add_note(lost if found(root) else back)
        raise


def _record(root: Path) -> dict[str, str]:
    """What the labs were made from; the record that was committed, where the file is lost.

    Raises:
        UpdateRefused: neither can be read.
    """
    for text in (None, git(root, "show", f"HEAD:{RECORD}")):
        with contextlib.suppress(ValueError):
            if text is not None:
                write_text(root / RECORD, record_text(json.loads(text)))
            if (root / RECORD).exists():
                return read_record(root)
    raise UpdateRefused(
        f"{RECORD}, which says what your labs were made from, is missing or damaged; clone the"
        " course anew, copy your labs/NN-… over the clone's, and work there"
    )


def _update(
    course: Course,
    pull: bool,
    before: Mapping[str, str],
    mine: dict[str, str],
    folder: Path | None,
) -> list[Change]:
    """The same, with the files backed up.

    Args:
        before: lab file -> git's name of the skeleton that it was made from.
        mine: lab file that the learner has changed -> its text.
        folder: where these are backed up.
    """
    root, changes = course.root, list[Change]()
    missing = [name for name in before if not (root / name).exists()]
    if pull:
        commits, source_of_it = _bring(root, {*before, RECORD}, mine)
        new = f"{commits} newer commit{'s' * (commits > 1)} fetched"
        changes.append(Change("course", new if commits else f"nothing newer in {source_of_it}"))
    record, texts, fresh = read_record(root), dict[Path, str | bytes](), Course(root)
    conflicts: dict[str, str] = {}
    for phase in fresh.ready:
        for path, new in generated(phase).items():
            name = path.relative_to(root).as_posix()
            if name in mine:
                change, merged = _merge(root, name, mine[name], before[name], new)
                changes.append(change)
                texts |= merged
                if change.kind == "conflict":
                    conflicts[name] = mine[name]
                if change.kind != "kept":
                    record[name] = blob_id(new)
                elif folder:  # to the byte, whatever its line ends
                    texts[path] = (folder / name).read_bytes()
    write_all(texts | {root / RECORD: record_text(record)})
    changes += [change for change in sync(fresh) if change.kind == "written"]
    said = {change.path for change in changes}
    again = [name for name in missing if name not in said and (root / name).exists()]
    changes += [Change("written", name, "it was missing: a fresh skeleton") for name in again]
    return changes + (_conclude(root, before, conflicts) if pull else [])


# ---------------------------------------------------------------- git's part
AGAIN = "then `make update` again"


def _refuse_unready(root: Path) -> None:
    """Look at git's state before anything changes: a merge of the learner's own is not ours to end.

    Raises:
        UpdateRefused: it must be put in order first.
    """

    def inside(name: str) -> bool:
        """Whether git keeps a file or folder of that name now."""
        return root.joinpath((git(root, "rev-parse", "--git-path", name) or "").strip()).exists()

    within = run_git(root, "rev-parse", "--show-toplevel")
    if within.returncode == NO_GIT:
        raise UpdateRefused(f"git does not answer ({within.stderr}); install it, {AGAIN}")
    if "dubious ownership" in within.stderr:  # as in a container, of a folder from outside
        raise UpdateRefused(
            "git does not trust this folder, since it belongs to another user; if it is yours:"
            f" `git config --global --add safe.directory {root}`, {AGAIN}"
        )
    if within.returncode or not root.samefile(within.stdout.strip()):
        holder = within.stdout.strip()
        what = f"lies in a repository of another kind, {holder}" if holder else "is not a git clone"
        raise UpdateRefused(
            f"this folder {what}, so it knows no newer course; clone the course, copy"
            " your labs/ over the clone's, and work there"
        )
    if inside("index.lock"):
        raise UpdateRefused(
            "another git command is at work here, or one was stopped in its middle; if none runs,"
            f" `rm .git/index.lock`, {AGAIN}"
        )
    if any(map(inside, ("rebase-merge", "rebase-apply"))):
        raise UpdateRefused(f"a rebase is not finished; `git status` says how to end it, {AGAIN}")
    unmerged = (git(root, "diff", "--name-only", "--diff-filter=U") or "").splitlines()
    if unmerged or inside("MERGE_HEAD"):
        where = f" in {some(unmerged)}" if unmerged else ""
        raise UpdateRefused(
            f"an earlier merge is not finished{where}; mend it, then `git add -u` and `git commit`,"
            f" {AGAIN}"
        )
    if not (git(root, "remote") or "").strip():
        raise UpdateRefused(
            "this clone has no remote; `git remote add origin ADDRESS`, with the address of your"
            f" course, `git fetch`, `git branch -u origin/main`, {AGAIN}"
        )
    if git(root, "symbolic-ref", "-q", "HEAD") is None:
        raise UpdateRefused(
            "you are on no branch (a detached HEAD, in git's words); `git switch -c mine` and"
            f" `git branch -u {_course_branch(root)}` make one of what you have, {AGAIN}"
        )


def _bring(root: Path, ours: Collection[str], mine: dict[str, str]) -> tuple[int, str]:
    """Fetch, and begin the merge; edits of lab files that are not committed are set aside.

    Returns the number of commits that the newer course brings, and where it was looked for:
    "origin/main (https://…)".

    Args:
        ours: the files whose merge is not git's.
        mine: lab file -> its text, to put back if git refuses.

    Raises:
        UpdateRefused: nothing has changed then.
    """
    fetched = run_git(root, "fetch")
    if fetched.returncode:
        raise UpdateRefused(_says(fetched, _todo(fetched, "look at `git remote -v`")))
    target = (git(root, "rev-parse", "--verify", "-q", "@{upstream}") or "").strip()
    if not target:
        raise UpdateRefused(
            f"this branch follows no other; say which one: `git branch -u {_course_branch(root)}`,"
            f" {AGAIN}"
        )
    commits = int(git(root, "rev-list", "--count", f"HEAD..{target}") or 0)
    texts = mine | {RECORD: record_text(read_record(root))}  # an undone update has an older one
    aside = [
        name for name in texts if run_git(root, "diff", "--quiet", "HEAD", "--", name).returncode
    ]
    for name in aside:
        git(root, "checkout", "HEAD", "--", name)
    # A lab file that was renamed is the learner's own now, and not the course's. Before git 2.50,
    # it is the older strategy that can be told so.
    as_named = ("-s", "recursive", "-X", "no-renames")
    merged = run_git(root, "merge", "--ff", "--no-commit", "--no-edit", *as_named, target)
    left = (git(root, "diff", "--name-only", "--diff-filter=U") or "").splitlines()
    others = sorted(set(left) - set(ours))
    if others or (merged.returncode and not left):
        git(root, "merge", "--abort")
        write_all({root / name: texts[name] for name in aside})
        if not others:
            raise UpdateRefused(_says(merged, _todo(merged, "do what git says")))
        raise UpdateRefused(
            f"you and the newer course both changed {', '.join(others[:3])}; take the course's"
            f" with `git checkout {target[:12]} -- {others[0]}` and `git commit`, or merge by hand"
            " with `git merge`, then `make update` again"
        )
    for name in left:  # of both sides; the learner's text comes back with our own merge
        run_git(root, "checkout", "--theirs", "--", name)
        run_git(root, "add", "--", name)
    branch = (git(root, "rev-parse", "--abbrev-ref", "@{upstream}") or "").strip()
    address = (git(root, "remote", "get-url", branch.partition("/")[0]) or "").strip()
    return commits, f"{branch} ({address})" if address else branch


def _course_branch(root: Path) -> str:
    """The branch of a remote that most probably has the course, whatever the remote is called."""
    listed = git(root, "for-each-ref", "--format=%(refname:short)", "refs/remotes") or ""
    names = [name for name in listed.split() if "/" in name and not name.endswith("/HEAD")]
    return next((name for name in names if name.endswith("/main")), [*names, "origin/main"][0])


TODO = {
    "local changes": "`git commit -am 'my work'`, or set them aside with `git stash`",
    "untracked working tree files": "rename your file, or move it elsewhere",
    "index file": "`rm .git/index` and `git reset` make it anew, and change no file of yours",
    "unrelated histories": "the course was published anew: clone it again, copy your labs/ over the"
    " clone's, and work there",
}
"""What git says when it refuses -> what to do."""


def _todo(done: subprocess.CompletedProcess[str], usual: str) -> str:
    return f"{next((todo for said, todo in TODO.items() if said in done.stderr), usual)}, {AGAIN}"


def _says(done: subprocess.CompletedProcess[str], todo: str) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    said = " ".join(" ".join(lines[:6]).split()) or f"exit code {done.returncode}"
    return f"git says: {said[:400]}; your files are as they were; {todo}"


def _conclude(root: Path, before: Mapping[str, str], conflicts: Mapping[str, str]) -> list[Change]:
    """Commit the merge, if it is one; what was committed of the labs is committed merged.

    Args:
        conflicts: lab file -> the learner's text, which is committed as it was: marks of a merge
            are in the folder alone, for the learner to mend.
    """
    if git(root, "rev-parse", "-q", "--verify", "MERGE_HEAD") is None:
        return []
    for name, skeleton in before.items():
        if (git(root, "rev-parse", f"HEAD:{name}") or "").strip() != skeleton:
            run_git(root, "add", "--", name)
    for name, text in conflicts.items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "mine")
            file.write_text(text, encoding="utf-8")
            blob = (git(root, "hash-object", "-w", "--", str(file)) or "").strip()
        run_git(root, "update-index", "--cacheinfo", f"100644,{blob},{name}")
    run_git(root, "add", "--", RECORD)
    done = run_git(root, "commit", "--no-edit", "-q")
    if done.returncode == 0:
        return []
    said = " ".join((done.stderr or done.stdout).split())[:400]
    return [Change("wrong", ".", f"all is merged, but not committed: {said}; then `git commit`")]


# ---------------------------------------------------------------- ours
def _merge(
    root: Path, name: str, mine: str, base_id: str, new: str
) -> tuple[Change, dict[Path, str]]:
    """What becomes of one lab file, and the texts to write."""
    path = root / name
    if base_id == blob_id(new):
        return Change("kept", name, "its skeleton did not change"), {}
    base = git(root, "cat-file", "blob", base_id)
    if base is None or name.endswith(".ipynb"):
        beside = path.with_name(f"{path.name}.new")
        why = f"the new skeleton lies beside it as {beside.name}"
        return Change("kept", name, why), {beside: new}
    merged, conflicts = _merge_solved(mine, base, new) or _merge_texts(mine, base, new)
    change = Change("merged", name)
    if conflicts:
        places = "1 place is" if conflicts == 1 else f"{conflicts} places are"
        first = f"the first in line {source.unresolved_merge(merged)}"
        change = Change("conflict", name, f"{places} marked <<<<<<< yours, {first}")
    return change, {path: merged}


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
