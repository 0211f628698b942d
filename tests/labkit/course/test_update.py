"""`make update` in a clone, as learners have it: with work that is committed, or not, or half."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.course import sync
from labkit.course.files import git as asked
from labkit.course.manifest import Course
from labkit.course.update import update
from tests.labkit.toy_course import ENGINE, lab, make_course, rewrite, write


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def be_somebody(folder: Path) -> None:
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
    be_somebody(origin)
    git(origin, "add", ".")
    git(origin, "commit", "-qm", "one")
    git(tmp_path, "clone", "-q", "origin", "mine")
    be_somebody(mine)
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


def test_what_is_committed_and_what_is_not_both_stay(clone: Clone) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    clone.commit()
    rewrite(clone.mine, "Fifo.drain", "return [43]")
    clone.publish(NEWER)
    assert not {"wrong", "conflict"} & {change.kind for change in update(clone.mine)}
    text = lab(clone.mine).read_text()
    assert "return 42" in text and "return [43]" in text and "Tokens that fit.\n" in text


def test_a_second_update_has_nothing_to_do(clone: Clone) -> None:
    rewrite(clone.mine, "clamp", "return 42")
    clone.commit()
    clone.publish(NEWER)
    update(clone.mine)
    before = lab(clone.mine).read_text()
    assert {change.kind for change in update(clone.mine)} == {"backup", "kept"}
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
