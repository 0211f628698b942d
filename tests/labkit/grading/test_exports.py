"""Exports: each against the fields that the other system documents, and against what it adds up."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from labkit.grading import exports
from labkit.grading.result import (
    Flag,
    GradeResult,
    GroupRecord,
    ResultError,
    Seed,
    TestRecord,
    commitment,
)

GRADESCOPE = {
    "score": (int, float),
    "execution_time": int,
    "output": str,
    "output_format": str,
    "visibility": str,
    "stdout_visibility": str,
    "extra_data": dict,
    "tests": list,
    "leaderboard": list,
}
"""Documented at https://gradescope-autograders.readthedocs.io/en/latest/specs/"""
GRADESCOPE_TEST = {
    "score": (int, float),
    "max_score": (int, float),
    "status": str,
    "name": str,
    "number": str,
    "output": str,
    "tags": list,
    "visibility": str,
    "extra_data": dict,
}


@pytest.fixture
def result() -> GradeResult:
    return GradeResult(
        phase="00-orientation",
        title="Orientation",
        submission={"request.py": "ab" * 32},
        suite="cd" * 32,
        seed=Seed(commitment(7), 7),
        isolation="namespaces",
        tools={"python": "3.12.1"},
        groups=[
            GroupRecord("00.1", "Is it finished?", "passed", 5, 5, passed=1, total=1, seconds=0.5),
            GroupRecord("00.2", "How many?", "failed", 10, 0, "wrong result", "Guesses.", 1, 2, 2),
            GroupRecord("00.3", "Take in", "failed", 10, 0, "timeout", "", 0, 1, 9),
        ],
        tests=[
            TestRecord("test_a.py::test_00_1_x", "All <twelve> & more.", "00.1", "passed"),
            TestRecord("test_a.py::test_00_2_x", "Counts.", "00.2", "passed"),
            TestRecord("test_a.py::test_00_2_y", "Drafts.", "00.2", "failed", "wrong result"),
            TestRecord("test_a.py::test_00_3_x", "Appends.", "00.3", "not run", "not run"),
        ],
        flags=[Flag("same as the reference", "request.py: Request.num_tokens")],
        started="2026-01-02T03:04:05+00:00",
        seconds=11.6,
    )


# ---------------------------------------------------------------- Gradescope
def check_gradescope(document: dict[str, Any]) -> None:
    for key, value in document.items():
        assert isinstance(value, GRADESCOPE[key]), key
    assert document["visibility"] in exports.VISIBILITIES
    assert document["stdout_visibility"] == "hidden"
    assert document["output_format"] == "text", "`<module>` in a problem is no HTML"
    for test in document["tests"]:
        for key, value in test.items():
            assert isinstance(value, GRADESCOPE_TEST[key]), key
        assert {"score", "max_score", "name"} <= set(test)
        assert test["status"] in ("passed", "failed")
        assert 0 <= test["score"] <= test["max_score"]
    assert document["tests"] or "score" in document


def test_gradescope_holds_documented_fields_only(result: GradeResult) -> None:
    document = exports.gradescope(result, "after_due_date")
    check_gradescope(document)
    assert [t["score"] for t in document["tests"]] == [5, 0, 0]
    assert "score" not in document  # it would override the tasks
    assert {t["visibility"] for t in document["tests"]} == {"after_due_date"}
    assert document["tests"][1]["output"] == ("1 of 2 hidden tests passed. wrong result. Guesses.")
    json.dumps(document)


def test_of_a_task_that_could_not_run_no_tests_are_counted(result: GradeResult) -> None:
    group = replace(result.groups[1], passed=0, total=0, kind="cannot import")
    assert exports.comment(group) == "No hidden test ran: cannot import. Guesses."


def test_gradescope_names_no_hidden_test(result: GradeResult) -> None:
    text = json.dumps(exports.gradescope(result))
    assert "test_00_2_y" not in text
    assert "Drafts." not in text


@pytest.mark.parametrize("status", ["partial", "error"])
def test_what_was_not_judged_scores_nothing_and_says_so(result: GradeResult, status: str) -> None:
    early = replace(result, groups=[], tests=[], status=status, problem="no space left")
    document = exports.gradescope(early)
    check_gradescope(document)
    assert document["score"] == 0
    expected = "submit again" if status == "partial" else "no fault of yours. no space left"
    assert expected in document["output"]
    assert exports.classroom(early)["status"] == "error"


def test_another_visibility_is_refused(result: GradeResult) -> None:
    with pytest.raises(ResultError, match="visibility is 'secret'; it must be one of visible"):
        exports.gradescope(result, "secret")


# ---------------------------------------------------------------- GitHub Classroom
def reporter(outputs: str) -> tuple[float, float, list[float]]:
    """What Classroom's reporter does with the outputs: (sum of scores, maximum, its table)."""
    values = dict(line.split("=", 1) for line in outputs.splitlines())
    total, maximum, rows = 0.0, 0.0, []
    for runner in values["runners"].split(","):
        document = json.loads(base64.b64decode(values[runner]))
        assert document["status"] in ("pass", "fail", "error")
        for test in document["tests"]:
            assert set(test) == {"name", "status", "score", "message", "line_no"}
            assert test["line_no"] == 0, "else its log names a line"
        total += sum(test["score"] for test in document["tests"])
        maximum += document["max_score"]
        passed = sum(test["status"] == "pass" for test in document["tests"])
        rows.append(passed / len(document["tests"]) * document["max_score"])
    return total, maximum, rows


def test_classroom_adds_up_in_both_of_its_sums(result: GradeResult) -> None:
    total, maximum, rows = reporter(exports.classroom_outputs(result))
    assert (total, maximum) == (5, 25)
    assert rows == [5, 0, 0]
    assert sum(rows) == total


def test_classroom_shows_kind_and_hint_of_a_failed_task(result: GradeResult) -> None:
    """Its log prints the name of a test that ran, and never the message."""
    names = [test["name"] for test in exports.classroom(result)["tests"]]
    assert names[:2] == [
        "00.1 Is it finished?",
        "00.2 How many?: 1 of 2 hidden tests passed. wrong result. Guesses.",
    ]


def test_classroom_outputs_are_one_line_each(result: GradeResult) -> None:
    values = dict(line.split("=", 1) for line in exports.classroom_outputs(result).splitlines())
    assert list(values) == ["result", "task1", "task2", "task3", "runners"]
    whole = json.loads(base64.b64decode(values["result"], validate=True))
    assert whole["max_score"] == 25
    assert whole["status"] == "fail"
    assert len(whole["tests"]) == 3


# ---------------------------------------------------------------- JUnit
def test_junit_counts_and_names_each_test(result: GradeResult) -> None:
    root = ElementTree.fromstring(exports.junit(result).encode())
    suites = root.findall("testsuite")
    assert [s.get("name") for s in suites] == [
        "00.1 Is it finished?",
        "00.2 How many?",
        "00.3 Take in",
    ]
    for suite in suites:
        cases = suite.findall("testcase")
        assert int(suite.get("tests", "")) == len(cases)
        assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure"))
        assert int(suite.get("errors", "")) == len(suite.findall("testcase/error"))
        properties = {p.get("name"): p.get("value") for p in suite.findall("properties/property")}
        assert properties["isolation"] == "namespaces"
        assert properties["seed"] == "7"
        assert properties["sha256 of request.py"] == "ab" * 32
    failure = suites[1].find("testcase/failure")
    assert failure is not None
    assert (failure.get("type"), failure.get("message")) == ("wrong result", "Guesses.")
    assert suites[2].find("testcase/error") is not None  # not run is not green
    assert suites[0].findall("testcase")[0].get("name") == "All <twelve> & more."


# ---------------------------------------------------------------- CSV
def test_the_table_has_a_row_each_and_a_column_for_each_task(result: GradeResult) -> None:
    broken = replace(result, groups=[], problem="request.py: missing, so nothing, at all")
    rows = list(csv.DictReader(io.StringIO(exports.table({"zoe": result, "ann": broken}))))
    assert [row["name"] for row in rows] == ["ann", "zoe"]
    assert (rows[1]["earned"], rows[1]["points"], rows[1]["passed"]) == ("5", "25", "no")
    assert [rows[1][task] for task in ("00.1", "00.2", "00.3")] == ["5", "0", "0"]
    assert rows[1]["kinds"] == "timeout; wrong result"
    assert rows[1]["flags"] == "same as the reference: request.py: Request.num_tokens"
    assert rows[0]["problem"] == "request.py: missing, so nothing, at all"
    assert rows[0]["00.1"] == ""


def test_a_name_is_no_formula(result: GradeResult) -> None:
    name = '=HYPERLINK("http://example.org")'
    (row,) = csv.DictReader(io.StringIO(exports.table({name: result})))
    assert row["name"] == "'" + name


# ---------------------------------------------------------------- the command
def export(*words: str) -> tuple[int, str]:
    import typer

    app = typer.Typer()
    app.command()(exports.main)
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


@pytest.mark.parametrize("form", ["gradescope", "classroom", "junit"])
def test_the_command_writes_each_format(result: GradeResult, form: str, tmp_path: Path) -> None:
    source, out = tmp_path / "result.json", tmp_path / "made" / "out"
    result.write(source)
    assert export(form, str(source), "--out", str(out)) == (0, "")
    assert out.read_text(encoding="utf-8") == exports.render(form, source)


def test_a_damaged_result_is_left_out_of_a_table_and_named(
    result: GradeResult, tmp_path: Path
) -> None:
    result.write(tmp_path / "ann.json")
    (tmp_path / "ben.json").write_text('{"schema": 1, "phase"')
    (tmp_path / "cleo.json").write_text("[]")
    (tmp_path / "dan.json").symlink_to("dan.json")
    code, text = export("csv", str(tmp_path))
    assert code == 0 and "\nann," in text
    assert "left out" in text and "ben.json: not JSON" in text and "cleo.json: is a list" in text
    assert "dan.json: " in text and "a link leads back to itself" in text


def test_half_a_character_and_a_control_character_stop_no_export(
    result: GradeResult, tmp_path: Path
) -> None:
    """A folder's name may be in any encoding, and a problem may quote what a student wrote."""
    odd = replace(result, problem="bad \ud800 \x00\x1b text")
    odd.write(tmp_path / os.fsdecode(b"ren\xe9.json"))
    result.write(tmp_path / "zoe.json")
    code, text = export("csv", str(tmp_path))
    assert code == 0 and "ren\\udce9," in text and "\nzoe," in text and "bad \\ud800" in text
    assert "\\x00\\x1b text" in text
    tree = ElementTree.fromstring(exports.junit(odd).encode())
    said = {p.get("value") for p in tree.iter("property") if p.get("name") == "problem"}
    assert said == {"bad \ufffd \ufffd\ufffd text"}


def test_the_command_reads_a_folder_for_a_table(result: GradeResult, tmp_path: Path) -> None:
    result.write(tmp_path / "ann.json")
    result.write(tmp_path / "zoe.json")
    code, text = export("csv", str(tmp_path))
    assert code == 0
    assert [line.split(",")[0] for line in text.splitlines()] == ["name", "ann", "zoe"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pdf", "result.json"], "format is 'pdf'; it must be one of gradescope"),
        (["junit", "gone.json"], "gone.json"),
        (["csv", "."], "holds no *.json"),
        (["csv", "gone"], "gone"),
        (["junit", "."], "is a folder; junit takes one result of it, such as NAME.json"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = export(*words)
    assert code == 2
    assert message in text
