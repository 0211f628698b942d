"""`make update` in a clone, as learners have it: with work that is committed, or not, or half."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer import Exit

from labkit.course import source, sync
from labkit.course import update as update_module
from labkit.course.files import git as asked
from labkit.course.manifest import Course
from labkit.course.update import update
from labkit.learner.commands import undo
from labkit.learner.commands import update as update_command
from tests.labkit.toy_course import ENGINE, lab, make_course, rewrite, write


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def set_author(folder: Path) -> None:
    git(folder, "config", "user.name", "t")
    git(folder, "config", "user.email", "t@t")


@dataclass
class Clone:
    """A learner's clone, and the course that it was cloned from."""

    origin: Path
    mine: Course

    def publish(self, engine: str, path: str = "toy/fifo.py") -> None:
        """A newer course, with its skeletons."""
        write(self.origin, path, engine)
        sync.sync(Course(self.origin))
        git(self.origin, "add", ".")
        git(self.origin, "commit", "-qm", "newer")

    def commit(self) -> None:
        git(self.mine.root, "commit", "-qam", "my work")

    def is_clean(self) -> bool:
        return asked(self.mine.root, "status", "--porcelain", "--untracked-files=no") == ""


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    origin, mine = tmp_path / "origin", tmp_path / "mine"
    origin.mkdir()
    make_course(origin)
    write(origin, ".gitignore", ".labkit/\n")
    git(origin, "init", "-q", "-b", "main")
    set_author(origin)
    git(origin, "add", ".")
    git(origin, "commit", "-qm", "one")
    git(tmp_path, "clone", "-q", "origin", "mine")
    set_author(mine)
    return Clone(origin, Course(mine))


NEWER = ENGINE.replace(
    "Tokens that fit: at most `budget`, at most `limit`; never below 0.",
    "Tokens that fit.\n\n    At most `budget`, at most `limit`; never below 0.\n    ",
)
"""The docstring beside what the learner writes: git alone sees a conflict there."""


def test_committed_work_beside_a_changed_line_is_merged_and_committed(clone: Clone) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    clone.commit()
    clone.publish(NEWER)
    kinds = {change.kind for change in update(clone.mine)}
    assert "merged" in kinds and not {"wrong", "conflict"} & kinds
    text = lab(clone.mine).read_text()
    assert "return 42" in text and "Tokens that fit.\n" in text and "<<<<" not in text
    assert clone.is_clean(), "the merge is committed"
    assert (clone.mine.root / "toy/fifo.py").read_text() == (
        clone.origin / "toy/fifo.py"
    ).read_text()


def test_marks_of_a_merge_are_not_committed(
    clone: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commit has the learner's file as she committed it; only the folder has the marks."""
    mine = lab(clone.mine).read_text().replace("Tokens that fit:", "Mine.")
    lab(clone.mine).write_text(mine)
    clone.commit()
    clone.publish(NEWER)
    monkeypatch.setenv("LABKIT_ROOT", str(clone.mine.root))
    with pytest.raises(Exit):
        update_command()
    said = capsys.readouterr().out
    line = source.unresolved_merge(lab(clone.mine).read_text())
    assert line and f"1 place is marked <<<<<<< yours, the first in line {line}" in said
    assert "next: make lab-00 shows the first marked place" in said
    assert asked(clone.mine.root, "show", "HEAD:labs/00-toy/fifo.py") == mine, "as she wrote it"
    assert asked(clone.mine.root, "diff", "--name-only") == "labs/00-toy/fifo.py\n"
    assert asked(clone.mine.root, "rev-parse", "-q", "--verify", "MERGE_HEAD") is None


def test_what_is_committed_and_what_is_not_both_stay(clone: Clone) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    clone.commit()
    rewrite(clone.mine, "Fifo.drain", "return [43]")
    clone.publish(NEWER)
    assert not {"wrong", "conflict"} & {change.kind for change in update(clone.mine)}
    text = lab(clone.mine).read_text()
    assert "return 42" in text and "return [43]" in text and "Tokens that fit.\n" in text


def test_a_hole_that_gets_a_parameter_with_a_default_keeps_its_solution(clone: Clone) -> None:
    """The signature is the newer course's, the body is the learner's."""
    rewrite(clone.mine, "clamp", "return 42")
    clone.commit()
    old = "def clamp(wanted: int, budget: int, limit: int) -> int:"
    new = "def clamp(wanted: int, budget: int, limit: int, least: int = 0) -> int:"
    clone.publish(NEWER.replace(old, new).replace("max(smallest, 0)", "max(smallest, least)"))
    assert not {"wrong", "conflict"} & {change.kind for change in update(clone.mine)}
    text = lab(clone.mine).read_text()
    assert new in text and old not in text
    assert "return 42" in text and "NotImplementedError" not in text.partition("class Fifo")[0]


def test_a_second_update_has_nothing_to_do(clone: Clone) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    clone.commit()
    clone.publish(NEWER)
    update(clone.mine)
    before = lab(clone.mine).read_text()
    second = update(clone.mine)
    assert {change.kind for change in second} == {"backup", "course", "kept"}
    assert f"nothing newer in origin/main ({clone.origin})" in "\n".join(map(str, second))
    assert lab(clone.mine).read_text() == before


def test_an_edited_engine_that_git_cannot_merge_is_named_with_the_way_out(clone: Clone) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    engine = clone.mine.root / "toy/fifo.py"
    engine.write_text(engine.read_text().replace("A queue and a clamp.", "Mine."))
    clone.commit()
    before = lab(clone.mine).read_text()
    clone.publish(ENGINE.replace("A queue and a clamp.", "Theirs."))
    *_, last = update(clone.mine)
    assert last.kind == "wrong"
    for word in (
        "you and the newer course both changed toy/fifo.py",
        "git checkout",
        "make update",
    ):
        assert word in last.why
    assert lab(clone.mine).read_text() == before and "Mine." in engine.read_text()
    assert clone.is_clean(), "no merge is left half done"


def test_gits_own_reason_is_said(clone: Clone) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    git(clone.mine.root, "remote", "set-url", "origin", str(clone.origin / "gone"))
    *_, last = update(clone.mine)
    assert last.kind == "wrong" and "gone" in last.why and "git remote -v" in last.why
    assert "return 42" in lab(clone.mine).read_text()


def test_a_branch_that_follows_none_is_told_how_to(clone: Clone) -> None:
    git(clone.mine.root, "checkout", "-qb", "my-own")
    *_, last = update(clone.mine)
    assert "git branch -u origin/main" in last.why


def test_a_file_of_ones_own_in_the_way_is_git_s_reason(clone: Clone) -> None:
    """Untracked, and the newer course brings one of that name."""
    rewrite(clone.mine, "clamp", "return 42")
    write(clone.mine.root, "toy/extra.py", "MINE = 1\n")
    clone.publish("THEIRS = 1\n", "toy/extra.py")
    *_, last = update(clone.mine)
    assert last.kind == "wrong" and "toy/extra.py" in last.why
    assert "return 42" in lab(clone.mine).read_text()
    assert (clone.mine.root / "toy/extra.py").read_text() == "MINE = 1\n"


# ---------------------------------------------------------------- git in a state of its own
def refusal(clone: Clone) -> str:
    """Why an update is refused; nothing of the learner's has changed then."""
    before = lab(clone.mine).read_text()
    status = asked(clone.mine.root, "status", "--porcelain")
    *_, last = update(clone.mine)
    assert last.kind == "wrong"
    assert lab(clone.mine).read_text() == before
    assert asked(clone.mine.root, "status", "--porcelain") == status
    return last.why


def conflict_of_ones_own(clone: Clone, how: str) -> None:
    """Two edits of one line, met by `git merge`, `rebase`, `cherry-pick` or `stash pop`."""
    root, engine = clone.mine.root, clone.mine.root / "toy/fifo.py"
    if how == "stash":
        engine.write_text("A = 1\n")
        git(root, "stash")
    else:
        git(root, "switch", "-qc", "other")
        engine.write_text("A = 1\n")
        clone.commit()
        git(root, "switch", "-q", "main")
    engine.write_text("A = 2\n")
    clone.commit()
    words = ["stash", "pop"] if how == "stash" else [how, "other"]
    assert subprocess.run(["git", "-C", str(root), *words], capture_output=True).returncode


@pytest.mark.parametrize("how", ["merge", "rebase", "cherry-pick", "stash"])
def test_a_merge_of_ones_own_is_not_ended_for_one(clone: Clone, how: str) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    clone.commit()
    clone.publish(NEWER)
    conflict_of_ones_own(clone, how)
    why = refusal(clone)
    assert ("rebase" if how == "rebase" else "toy/fifo.py") in why and "make update" in why
    assert "<<<<<<<" in (clone.mine.root / "toy/fifo.py").read_text()


def test_on_no_branch_one_is_told_how_to_make_one(clone: Clone) -> None:
    git(clone.mine.root, "checkout", "-q", "--detach")
    rewrite(clone.mine, "clamp", "return 42")
    clone.publish(NEWER)
    assert "git switch -c mine" in refusal(clone)
    git(clone.mine.root, "switch", "-qc", "mine")
    git(clone.mine.root, "branch", "-qu", "origin/main")
    assert "wrong" not in {change.kind for change in update(clone.mine)}, "the advice works"


def test_without_a_remote_one_is_told_how_to_name_one(clone: Clone) -> None:
    git(clone.mine.root, "remote", "remove", "origin")
    rewrite(clone.mine, "clamp", "return 42")
    assert "git remote add origin ADDRESS" in refusal(clone)
    git(clone.mine.root, "remote", "add", "origin", str(clone.origin))
    git(clone.mine.root, "fetch", "-q")
    git(clone.mine.root, "branch", "-qu", "origin/main")
    assert "wrong" not in {change.kind for change in update(clone.mine)}


def test_a_copy_without_git_is_told_to_clone(clone: Clone) -> None:
    shutil.rmtree(clone.mine.root / ".git")
    assert "not a git clone" in refusal(clone)


def test_a_copy_inside_another_repository_is_told_to_clone(clone: Clone) -> None:
    """As a course that lies in a folder of homework, itself a repository."""
    shutil.rmtree(clone.mine.root / ".git")
    outer = clone.mine.root.parent
    git(outer, "init", "-q")
    git(outer, "remote", "add", "origin", str(clone.origin))
    assert f"repository of another kind, {outer}" in refusal(clone)


def test_a_folder_that_git_does_not_trust_is_named_with_gits_own_remedy(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    *_, last = update(clone.mine)
    assert f"git config --global --add safe.directory {clone.mine.root}" in last.why


def test_without_git_one_is_told_so(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    *_, last = update(clone.mine)
    assert last.why.startswith("git does not answer (") and "install it" in last.why


def test_a_course_that_was_published_anew_is_to_be_cloned_again(clone: Clone) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    clone.commit()
    git(clone.origin, "checkout", "-q", "--orphan", "anew")
    git(clone.origin, "commit", "-qm", "all of it")
    git(clone.origin, "branch", "-M", "anew", "main")
    assert "the course was published anew: clone it again" in refusal(clone)


def test_a_remote_that_does_not_answer_is_not_waited_for(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"git://127.0.0.1:{silent.getsockname()[1]}/x"
        git(clone.mine.root, "remote", "set-url", "origin", address)
        monkeypatch.setattr("labkit.course.files.GIT_SECONDS", 5)
        assert "`git fetch` did not end within 5 s" in refusal(clone)


def test_an_undone_update_can_be_made_again(
    clone: Clone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the labs were made from comes back with them, or the next update would take the old
    skeleton's lines for the learner's own."""
    monkeypatch.setenv("LABKIT_ROOT", str(clone.mine.root))
    rewrite(clone.mine, "clamp", "return 42")
    clone.commit()
    mine, record = lab(clone.mine).read_text(), sync.read_record(clone.mine.root)
    clone.publish(NEWER)
    update(clone.mine)
    merged = lab(clone.mine).read_text()
    undo("")
    assert (lab(clone.mine).read_text(), sync.read_record(clone.mine.root)) == (mine, record)
    assert sync.RECORD not in capsys.readouterr().out
    clone.publish(NEWER.replace("A queue and a clamp.", "Newer still."))
    assert not {"wrong", "conflict"} & {change.kind for change in update(clone.mine)}
    assert lab(clone.mine).read_text() == merged.replace("A queue and a clamp.", "Newer still.")


def test_a_git_that_was_stopped_leaves_a_lock_that_is_named(clone: Clone) -> None:
    write(clone.mine.root, ".git/index.lock", "")
    assert "rm .git/index.lock" in refusal(clone)


def test_what_is_staged_is_to_be_committed_first(clone: Clone) -> None:
    """Git merges nothing over it; with our `git add -A` behind it, the advice must work."""
    rewrite(clone.mine, "clamp", "return 42")
    clone.commit()
    write(clone.mine.root, "toy/other.py", "MINE = 1\n")
    git(clone.mine.root, "add", "-A")
    clone.publish(NEWER)
    assert "git commit -am" in refusal(clone)
    clone.commit()
    assert "wrong" not in {change.kind for change in update(clone.mine)}
    assert "return 42" in lab(clone.mine).read_text()


def test_an_unresolved_merge_is_not_merged_again(clone: Clone) -> None:
    lab(clone.mine).write_text("<<<<<<< yours\n" + lab(clone.mine).read_text())
    before = lab(clone.mine).read_text()
    clone.publish(NEWER)
    assert "fifo.py:1 holds an unresolved merge: mend it, then `make update` again" in refusal(
        clone
    )
    assert lab(clone.mine).read_text() == before


def test_a_newer_engine_alone_is_said_too(clone: Clone) -> None:
    clone.publish("NEW = 1\n", "toy/extra.py")
    assert "1 newer commit fetched" in "\n".join(map(str, update(clone.mine)))


def test_a_refusal_of_the_disk_says_where_the_files_are(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    clone.publish(NEWER)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("labkit.course.update._merge", full)
    with pytest.raises(OSError) as refused:
        update(clone.mine)
    assert ".labkit/backups/" in refused.value.__notes__[0]


def killed(clone: Clone, before: str) -> None:
    """An update in a process that ends at once, as by `kill -9`, before a git command or before a
    file gets its place."""
    pid = os.fork()
    if not pid:
        real, replace = update_module.run_git, os.replace

        def run_git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
            return os._exit(9) if words[0] == before else real(root, *words)

        def replacing(old: Path, new: Path) -> None:
            return os._exit(9) if Path(new).as_posix().endswith(before) else replace(old, new)

        update_module.run_git, os.replace = run_git, replacing  # type: ignore[assignment]
        try:
            update(clone.mine)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9, "it came to its end"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a process to kill")
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("before", ["merge", "labs/00-toy/fifo.py", sync.RECORD])
def test_a_killed_update_is_taken_back_by_the_next_command(
    clone: Clone,
    before: str,
    committed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All or nothing: the next update must not take the course's files for the learner's."""
    monkeypatch.setenv("LABKIT_ROOT", str(clone.mine.root))
    rewrite(clone.mine, "clamp", "return 42")
    if committed:
        clone.commit()
    mine = {path: path.read_bytes() for path in clone.mine.root.glob("labs/**/*") if path.is_file()}
    clone.publish(NEWER)
    killed(clone, before)
    undo("")
    said = capsys.readouterr().out
    assert "`make update` was stopped in its middle" in said and ".labkit/backups/" in said
    assert mine == {p: p.read_bytes() for p in clone.mine.root.glob("labs/**/*") if p.is_file()}
    killed(clone, before)
    with pytest.raises(Exit) as ended:
        update_command(pull=True)
    assert ended.value.exit_code == 0 and "merged" in capsys.readouterr().out
    text = lab(clone.mine).read_text()
    assert "return 42" in text and "Tokens that fit.\n" in text
    assert not committed or clone.is_clean()


def test_an_update_with_nothing_new_changes_no_byte(clone: Clone) -> None:
    """A file from Windows ends its lines in two bytes."""
    rewrite(clone.mine, "clamp", "return 42")
    lab(clone.mine).write_bytes(lab(clone.mine).read_bytes().replace(b"\n", b"\r\n"))
    before = lab(clone.mine).read_bytes()
    assert "kept" in {change.kind for change in update(clone.mine)}
    assert lab(clone.mine).read_bytes() == before


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("renamed", [True, False])
def test_a_lab_file_that_is_gone_comes_back_and_is_named(
    clone: Clone, committed: bool, renamed: bool
) -> None:
    """Renamed, it is the learner's own: git must not take it for the course's."""
    own = lab(clone.mine).with_name("mine.py")
    own.write_text("MINE = 1\n" + lab(clone.mine).read_text())
    lab(clone.mine).unlink()
    own.unlink() if not renamed else None
    if committed:
        git(clone.mine.root, "add", "-A")
        clone.commit()
    clone.publish(NEWER)
    changes = update(clone.mine)
    assert "written  labs/00-toy/fifo.py  (it was missing" in "\n".join(map(str, changes))
    assert lab(clone.mine).read_text() == lab(Course(clone.origin)).read_text()
    assert not renamed or own.read_text().startswith("MINE = 1\n")


@pytest.mark.parametrize("text", ["", "{<<<<<<< yours"])
def test_a_lost_record_is_taken_from_what_was_committed(clone: Clone, text: str) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    record = clone.mine.root / sync.RECORD
    record.write_text(text) if text else record.unlink()
    clone.publish(NEWER)
    assert {change.kind for change in update(clone.mine)} == {"backup", "course", "merged"}
    assert "return 42" in lab(clone.mine).read_text()


def test_without_any_record_nothing_is_merged(clone: Clone) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    git(clone.mine.root, "rm", "-q", sync.RECORD)
    clone.commit()
    clone.publish(NEWER)
    assert "is missing or damaged; clone the course anew" in refusal(clone)
    assert "return 42" in lab(clone.mine).read_text()


def test_a_remote_of_another_name_is_followed_and_named(clone: Clone) -> None:
    git(clone.mine.root, "remote", "remove", "origin")
    git(clone.mine.root, "remote", "add", "course", str(clone.origin))
    clone.publish(NEWER)
    assert "`git branch -u course/main`" in refusal(clone)
    git(clone.mine.root, "branch", "-qu", "course/main")
    assert "wrong" not in {change.kind for change in update(clone.mine)}


@pytest.mark.parametrize("ff", ["only", "false"])
def test_a_merge_is_one_whatever_git_is_configured_to_make_of_it(clone: Clone, ff: str) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    clone.commit()
    git(clone.mine.root, "config", "merge.ff", ff)
    clone.publish(NEWER)
    assert {change.kind for change in update(clone.mine)} == {"backup", "course", "merged"}
    assert "return 42" in lab(clone.mine).read_text() and clone.is_clean()


def test_gits_reason_is_known_in_any_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for in what git says in English."""
    (tmp_path / "git").write_text("#!/bin/sh\necho $LC_ALL\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert asked(tmp_path, "status") == "C\n"


def test_a_damaged_index_is_told_how_to_be_made_anew(clone: Clone) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    (clone.mine.root / ".git/index").write_bytes(b"junk")
    clone.publish(NEWER)
    assert "`rm .git/index` and `git reset`" in refusal(clone)
    (clone.mine.root / ".git/index").unlink()
    git(clone.mine.root, "reset", "-q")
    assert "wrong" not in {change.kind for change in update(clone.mine)}, "the advice works"


def test_a_file_in_the_place_of_a_lab_s_folder_is_named(clone: Clone) -> None:
    folder = lab(clone.mine).parent
    shutil.rmtree(folder)
    folder.write_text("x")
    clone.publish(NEWER)
    with pytest.raises(NotADirectoryError, match="00-toy"):
        update(clone.mine)


def test_a_shallow_clone_and_a_worktree_are_clones(clone: Clone, tmp_path: Path) -> None:
    clone.publish("OLD = 1\n", "toy/old.py")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{clone.origin}", "shallow")
    git(clone.mine.root, "worktree", "add", "-q", "-b", "own", str(tmp_path / "tree"))
    git(tmp_path / "tree", "branch", "-qu", "origin/main")
    clone.publish(NEWER)
    for name in ("shallow", "tree"):
        course = Course(tmp_path / name)
        rewrite(course, "clamp", "return 42")
        assert {change.kind for change in update(course)} == {"backup", "course", "merged"}
        assert "return 42" in lab(course).read_text()
