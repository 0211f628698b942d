"""A receipt: what it says, how it is checked, and what it refuses."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.course import finish
from labkit.course.manifest import Course
from labkit.course.root import ROOT
from labkit.grading import receipt
from labkit.grading.result import GradeResult, GroupRecord, Seed, commitment, hash_suite

COURSE = Course(ROOT)
needs_ssh = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="OpenSSH is not here")


def result(number: str, status: str = "passed") -> GradeResult:
    phase = COURSE.phase(number)
    groups = [
        GroupRecord(task.id, task.title, status, task.points, task.points * (status == "passed"))
        for task in phase.exercises
    ]
    return GradeResult(
        phase.slug, phase.title, {"a.py": "0f"}, hash_suite(phase.hidden_tests),
        Seed(commitment(7), 7), "namespaces", {}, groups, started="2026-11-28T10:00:00",
    )  # fmt: skip


def test_it_says_what_was_passed_where_and_with_which_seed() -> None:
    found = receipt.make(COURSE, "Ada", [result("00", "failed"), result("00"), result("03")])
    first, second = found["phases"]
    assert (first["phase"], first["earned"], first["seed"]) == ("00-orientation", 50, 7)
    assert second["tasks"][:2] == ["03.1", "03.2"] and second["isolation"] == "namespaces"
    assert len(found["commit"]) == 40 and found["finish lines"] == []
    core = receipt.make(COURSE, "Ada", [result(f"{n:02}") for n in range(4)])
    assert core["finish lines"] == ["Core"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"suite": "0" * 64}, "was judged by the suite 000000000000, and this checkout has"),
        ({"status": "partial"}, "has the status 'partial'; only what was judged to its end"),
        ({"seed": Seed(commitment(7))}, "only what was judged"),
    ],
)
def test_what_this_commit_has_not_judged_is_not_signed(change: dict, says: str) -> None:
    with pytest.raises(receipt.ReceiptError, match=says):
        receipt.make(COURSE, "Ada", [replace(result("00"), **change)])
    with pytest.raises(receipt.ReceiptError, match="no result"):
        receipt.make(COURSE, "Ada", [])


def test_a_checkout_that_is_not_its_commit_signs_nothing(tmp_path: Path) -> None:
    words = ("-c", "user.name=a", "-c", "user.email=a@b")
    (tmp_path / "labkit").mkdir()
    (tmp_path / "labs").mkdir()
    (tmp_path / "labkit" / "a.py").write_text("")
    for command in (("init", "-q"), ("add", "."), (*words, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    (tmp_path / "labs" / "fifo.py").write_text("a student's")
    receipt.refuse_what_is_not_committed(tmp_path)
    (tmp_path / "labkit" / "a.py").write_text("passed = True")
    with pytest.raises(receipt.ReceiptError, match=r"labkit/a.py is not as the commit has it \(1"):
        receipt.refuse_what_is_not_committed(tmp_path)


@needs_ssh
def test_a_receipt_is_checked_with_the_public_key_and_a_change_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt, "refuse_what_is_not_committed", lambda root: None)
    key, path = tmp_path / "class", tmp_path / "ada.receipt"
    result("00").write(tmp_path / "ada.json")
    receipt.make_key(key)
    receipt.write("Ada", [tmp_path / "ada.json"], key=key, out=path)
    receipt.check_command(path, key=tmp_path / "class.pub")
    assert "signed with this key, and not changed since" in capsys.readouterr().out

    signers = tmp_path / "signers"  # the line of docs/instructors.md, without labkit
    signers.write_text(f"class {(tmp_path / 'class.pub').read_text()}")
    words = f"ssh-keygen -Y verify -f {signers} -I class -n receipt@mini_vllm -s {path}.sig"
    with open(path, "rb") as text:
        assert subprocess.run(words.split(), stdin=text, capture_output=True).returncode == 0

    receipt.make_key(tmp_path / "other")
    for wrong in (tmp_path / "other.pub", tmp_path / "class"):
        with pytest.raises(receipt.ReceiptError):
            receipt.check(path, wrong)
    path.write_text(path.read_text().replace("Ada", "Eve"))
    with pytest.raises(receipt.ReceiptError, match="it was changed, or another key signed it"):
        receipt.check(path, tmp_path / "class.pub")
    Path(f"{path}.sig").unlink()
    with pytest.raises(receipt.ReceiptError, match="is missing; it comes with the receipt"):
        receipt.check(path, tmp_path / "class.pub")


@needs_ssh
def test_a_text_that_is_signed_and_no_receipt(tmp_path: Path) -> None:
    key, path = tmp_path / "class", tmp_path / "note"
    receipt.make_key(key)
    path.write_text(json.dumps({"receipt": 2, "phases": []}))
    receipt._ssh_keygen("-Y", "sign", "-q", "-n", receipt.NAMESPACE, "-f", str(key), str(path))
    with pytest.raises(receipt.ReceiptError, match="is signed, and is no receipt"):
        receipt.check(path, tmp_path / "class.pub")


def test_three_finish_lines() -> None:
    core, engine, maintainer = finish.LINES
    assert [len(line.phases(COURSE)) for line in finish.LINES] == [4, 8, len(COURSE.ready)]
    done = {"00", "01", "02", "03", "05"}
    assert finish.reached(COURSE, done) == ["Core"]
    assert core.words(COURSE, done) == "Core ✓"
    assert engine.words(COURSE, done) == "Engine 5 of 8"
    assert maintainer.words(COURSE, done).startswith("Maintainer 5 of")
