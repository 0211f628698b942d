"""What is handed out: nothing hidden, a pack that only the key opens, and a tree that works."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from labkit.course import sync
from labkit.course.manifest import Course
from labkit.course.root import find_root
from labkit.grading import student_dist
from labkit.grading.student_dist import PACK, SealError
from labkit.judge import mistakes

ROOT = find_root()
KEPT_SECRET = (
    "tests/hidden",
    "solutions",
    "tests/corpora/alternatives",
    "tests/corpora/cheats",
    "autograder",
)
SHOWN_TESTS = {
    "conftest.py",
    "Makefile",
    "public",
    "engine",
    "conformance",
    "corpora",
    "hidden.sealed",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree that students get; its key lies beside it."""
    out = tmp_path_factory.mktemp("handout") / "course"
    key = student_dist.new_key(out.with_name("course.key"))
    student_dist.pack_course(ROOT, out, key, walkthroughs=False, classroom="03")
    return out


# ---------------------------------------------------------------- what is in it
@pytest.mark.parametrize("folder", KEPT_SECRET)
def test_nothing_hidden_is_in_the_tree(tree: Path, folder: str) -> None:
    assert not (tree / folder).exists()


def test_of_the_tests_only_the_chosen_are_there(tree: Path) -> None:
    """Also after a folder was added."""
    assert {path.name for path in (tree / "tests").iterdir()} == SHOWN_TESTS
    corpora = {path.name for path in (tree / "tests" / "corpora").iterdir()}
    assert corpora == {"mutants", "upstream_bugs"}
    assert not student_dist.handed_out("tests/new_folder/answers.py", walkthroughs=True)


def test_no_hidden_test_is_named_anywhere(tree: Path) -> None:
    define = re.compile(r"def (test_\w+)")
    hidden = {n for p in ROOT.glob("tests/hidden/*/*.py") for n in define.findall(p.read_text())}
    public = {n for p in ROOT.glob("tests/public/*/*.py") for n in define.findall(p.read_text())}
    secret = hidden - public
    assert len(secret) > 20
    for path in tree.rglob("*"):
        if path.suffix in (".py", ".md", ".toml", ".json", ".ipynb", ".yml") and path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not secret & set(re.findall(r"test_\w+", text)), path


def test_labs_are_untouched_skeletons(tree: Path) -> None:
    for phase in Course(tree).ready:
        for path, text in sync.generated(phase).items():
            assert path.read_text(encoding="utf-8") == text


def test_public_mistakes_stay_and_hidden_ones_go(tree: Path) -> None:
    for phase in Course(ROOT).ready:
        mine = mistakes.entries(phase)
        public = {entry["name"] for entry in mine if "hidden_only" not in entry}
        handed_out = mistakes.entries(Course(tree).phase(phase.number))
        assert {entry["name"] for entry in handed_out} == public
        assert len(public) < len(mine), f"{phase.number} has no mistake that is kept secret"
        if mistakes.vectors_file(phase).exists():
            vectors = json.loads(
                (tree / "tests/corpora/mutants" / f"{phase.slug}.json").read_text()
            )
            assert vectors["hidden"] == {}
            assert set(vectors["public"]) <= public
        recorded = mistakes.faults(Course(tree).phase(phase.number))
        assert recorded.keys() <= public and recorded == mistakes.faults(phase)
    assert mistakes.load(Course(tree).phase("00")), "what is left can be used"


def test_walkthroughs_come_only_if_asked(tmp_path: Path) -> None:
    name = "solutions/03-scheduler/WALKTHROUGH.md"
    assert (ROOT / name).exists()
    assert student_dist.handed_out(name, walkthroughs=True)
    assert not student_dist.handed_out(name, walkthroughs=False)
    assert not student_dist.handed_out("solutions/03-scheduler/lab.ipynb", walkthroughs=True)


def test_the_note_says_what_is_missing(tree: Path) -> None:
    note = (tree / "HANDOUT.md").read_text(encoding="utf-8")
    assert PACK in note
    assert "labkit unseal" in note
    assert "{" not in note


def test_the_workflow_is_for_the_chosen_phase(tree: Path) -> None:
    text = (tree / ".github/workflows/classroom.yml").read_text(encoding="utf-8")
    assert '\n  PHASE: "03"\n' in text


def test_a_full_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="is not empty"):
        student_dist.pack_course(ROOT, tmp_path, b"", walkthroughs=False)


# ---------------------------------------------------------------- the sealed pack
def test_the_key_is_its_owners_only_and_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "course.key"
    key = student_dist.new_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert student_dist.new_key(path) == key


def test_the_pack_holds_no_readable_name(tree: Path) -> None:
    pack = (tree / PACK).read_bytes()
    assert b"test_" not in pack
    assert len(pack) > 10_000


def test_the_key_opens_the_pack(tree: Path, tmp_path: Path) -> None:
    key = tree.with_name("course.key").read_bytes().strip()
    student_dist.unseal((tree / PACK).read_bytes(), key, tmp_path)
    for path in ROOT.glob("tests/hidden/**/*.py"):
        opened = tmp_path / path.relative_to(ROOT)
        assert opened.read_bytes() == path.read_bytes()
    assert (tmp_path / "solutions/03-scheduler/WALKTHROUGH.md").exists()
    assert (tmp_path / "solutions/03-scheduler/scheduler.py").is_symlink()
    assert not list(tmp_path.rglob("__pycache__"))


def test_another_key_opens_nothing(tree: Path, tmp_path: Path) -> None:
    key = student_dist.new_key(tmp_path / "other.key")
    with pytest.raises(SealError, match="this key does not open this pack"):
        student_dist.unseal((tree / PACK).read_bytes(), key, tmp_path / "out")
    with pytest.raises(SealError, match="one line of 44 characters"):
        student_dist.unseal((tree / PACK).read_bytes(), b"guess", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_changed_pack_is_refused(tree: Path, tmp_path: Path) -> None:
    key = tree.with_name("course.key").read_bytes().strip()
    pack = bytearray((tree / PACK).read_bytes())
    pack[len(pack) // 2] ^= 1
    with pytest.raises(SealError, match="or the pack was changed"):
        student_dist.unseal(bytes(pack), key, tmp_path)


def test_a_pack_writes_nothing_outside_its_tree(tmp_path: Path) -> None:
    key = student_dist.new_key(tmp_path / "course.key")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../escaped.txt"), io.BytesIO())
    from cryptography.fernet import Fernet

    pack = Fernet(key).encrypt(buffer.getvalue())
    with pytest.raises(tarfile.OutsideDestinationError):
        student_dist.unseal(pack, key, tmp_path / "tree")
    assert not (tmp_path / "escaped.txt").exists()


# ---------------------------------------------------------------- the tree at work
def labkit(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("LAB", "LABKIT_ROOT", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-m", "labkit", *words],
        cwd=tree, env=env, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.mark.slow
def test_the_doctor_is_content(tree: Path) -> None:
    done = labkit(tree, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failures" in done.stdout


@pytest.mark.slow
def test_the_demo_runs(tree: Path) -> None:
    done = labkit(tree, "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The capital of France is Paris." in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [phase.number for phase in Course(ROOT).ready])
def test_every_lab_is_red_and_says_why(tree: Path, number: str) -> None:
    done = labkit(tree, "lab", number)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"TODO {number}.1" in done.stdout or f"{number}.1" in done.stdout
    assert "public 0/" in done.stdout


@pytest.mark.slow
def test_sealed_suites_grade_nothing_until_they_are_opened(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "course"
    shutil.copytree(tree, copy)
    for name in ("request.py", "engine/step.py"):
        shutil.copy(copy / "mini_vllm" / name, copy / "labs" / "00-orientation")
    result = str(tmp_path / "result.json")
    sealed = labkit(copy, "grade-submission", "00", ".", "--result", result)
    assert sealed.returncode == 2
    assert "`labkit unseal KEYFILE` opens a sealed one" in sealed.stderr
    opened = labkit(copy, "unseal", str(tree.with_name("course.key")))
    assert opened.returncode == 0, opened.stderr
    graded = labkit(copy, "grade-submission", "00", ".", "--result", result)
    assert graded.returncode == 0, graded.stdout + graded.stderr
    assert "50 of 50 points" in graded.stdout
