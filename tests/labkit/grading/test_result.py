"""The result file: what is written comes back, and a bad file names its bad key."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labkit.grading import result
from labkit.grading.result import Flag, GradeResult, GroupRecord, ResultError, Seed, TestRecord
from labkit.sandbox import build as sandbox


def make_result(**changes: Any) -> GradeResult:
    """A result of two groups: one passed, one in an endless loop."""
    values: dict[str, Any] = {
        "phase": "00-orientation",
        "title": "Orientation",
        "submission": {"request.py": "ab12"},
        "suite": "cd34",
        "seed": Seed(result.commitment(7), 7),
        "isolation": "plain",
        "tools": {"python": "3.12.1", "torch": "2.13.0"},
        "groups": [
            GroupRecord("00.1", "Is it finished?", "passed", 5, 5, passed=1, total=1, seconds=0.5),
            GroupRecord(
                "00.2", "How many?", "failed", 10, 0, "endless loop", "Count once.", 0, 1, 10.0
            ),
        ],
        "tests": [
            TestRecord("test_a.py::test_00_1_x", "All twelve.", "00.1", "passed", "", 0.5),
            TestRecord("test_a.py::test_00_2_y", "Counts.", "00.2", "failed", "endless loop", 10.0),
        ],
        "flags": [Flag("same as the reference", "request.py: Request.num_tokens")],
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 11.0,
    }
    return GradeResult(**values | changes)


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.json"
    made = make_result()
    made.write(path)
    assert result.load(path) == made
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["earned"], document["points"], document["passed"]) == (5, 15, False)
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]  # no half file beside it


def test_passed_means_judged_to_the_end() -> None:
    groups = [GroupRecord("00.1", "t", "passed", 5, 5)]
    assert make_result(groups=groups).passed
    assert not make_result(groups=groups, status="partial").passed
    assert not make_result(groups=[]).passed
    assert not make_result().passed


def _set(*keys: Any) -> Callable[[Any], None]:
    """A change of a document: the last word is put where the others lead."""
    *path, last, value = keys

    def change(document: Any) -> None:
        for key in path:
            document = document[key]
        document[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("schema", 2), "schema is 2; this labkit reads schema 1"),
        (_set("groups", 0, "points", "x"), "groups[0].points is 'x'; it must be a number"),
        (_set("groups", 1, "kind", "sad"), "groups[1].kind is 'sad'; it must be one of ''"),
        (_set("tests", 0, "status", "ok"), "tests[0].status is 'ok'; it must be one of 'passed'"),
        (_set("isolation", "jail"), "isolation is 'jail'"),
        (_set("seed", "value", 1.5), "seed.value is 1.5; it must be an integer or null"),
        (_set("seed", 3), "seed is 3; it must be an object"),
        (_set("flags", 3), "flags is 3; it must be a list"),
        (_set("tools", "python", None), "tools.python is None; it must be a text"),
        (_set("groups", 0, "pionts", 1), "groups[0].pionts is not a key here"),
        (_set("groups", 0, "earned", 6), "groups[0].earned is 6; it must lie between 0 and its"),
        (_set("groups", 1, "earned", -1), "groups[1].earned is -1; it must lie between 0 and its"),
        (_set("groups", 1, "id", "00.1"), "groups[1].id is '00.1', for the second time"),
        (_set("earned", 15), "earned is 15; its groups say 5"),
        (_set("seconds", float("nan")), "seconds is nan; it must be a finite number"),
        (_set("seconds", float("inf")), "seconds is inf; it must be a finite number"),
        (_set("groups", 0, "points", 10**400), "groups[0].points is 1000"),
        (lambda document: document.pop("suite"), "suite is missing"),
    ],
)
def test_a_bad_file_names_its_bad_key(
    tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    path = tmp_path / "result.json"
    make_result().write(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ResultError) as raised:
        result.load(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text('{"schema": 1', encoding="utf-8")
    with pytest.raises(ResultError, match=r"result\.json: not JSON"):
        result.load(path)


def test_a_file_that_cannot_be_a_result_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe would be waited for, 20 GB would be read, and a deep list ends the parser."""
    pipe, huge, deep = (tmp_path / f"{name}.json" for name in ("pipe", "huge", "deep"))
    os.mkfifo(pipe)
    with open(huge, "wb") as file:
        file.truncate(20 << 30)
    deep.write_text("[" * 100_000, encoding="utf-8")
    said = {pipe: "no plain file", huge: "21474836480 bytes", deep: "not JSON"}
    for path, words in said.items():
        with pytest.raises(ResultError, match=words):
            result.load(path)


def test_a_file_that_is_closed_to_the_grader_has_no_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root opens everything, so the system's refusal is played."""
    path = tmp_path / "request.py"
    path.write_text("x = 1\n", encoding="utf-8")

    def closed(*words: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", closed)
    monkeypatch.setattr(Path, "read_bytes", closed)
    assert result.hash_file(path) == ""
    with pytest.raises(sandbox.SubmissionError, match=r"request\.py cannot be read: Permission"):
        sandbox.declared({"m": path})
    monkeypatch.setattr(Path, "lstat", closed)  # its folder is another user's
    with pytest.raises(sandbox.SubmissionError, match=r"request\.py cannot be read: Permission"):
        sandbox.declared({"m": path})


def test_the_hash_of_a_suite_changes_with_its_tests_and_with_the_shared_fixtures(
    tmp_path: Path,
) -> None:
    suite = tmp_path / "00-toy"
    suite.mkdir()
    (suite / "a.py").write_text("x = 1\n", encoding="utf-8")
    seen = [result.hash_suite(suite)]
    (suite / "notes.txt").write_text("no code", encoding="utf-8")
    assert result.hash_suite(suite) == seen[0]
    for path in (suite / "b.py", tmp_path / "conftest.py"):
        path.write_text("", encoding="utf-8")
        seen.append(result.hash_suite(suite))
    assert len(set(seen)) == 3


def test_the_hash_of_a_submission_names_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    names = {"a.py": tmp_path / "a.py", "gone.py": tmp_path / "gone.py"}
    hashes = result.hash_submission(names)
    assert len(hashes["a.py"]) == 64
    assert hashes["gone.py"] == ""


def test_a_commitment_belongs_to_one_seed() -> None:
    assert result.commitment(7) == result.commitment(7) != result.commitment(8)


def test_the_tools_that_a_grade_depends_on_are_named() -> None:
    versions = result.tool_versions()
    assert {"python", "pytest", "hypothesis"} <= set(versions)
    assert all(versions.values())
