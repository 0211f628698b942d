"""The table of keywords: how it is counted, and that the chapter shows what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.schema_keywords import RESULTS, Row, main, measure, table

CASES = [
    {"schema": {"type": "null"}, "tests": [{"data": None, "valid": True},
                                           {"data": "a", "valid": False}]},
    {"schema": {"uniqueItems": True, "type": "array"}, "tests": [{"data": [1, 1], "valid": False}]},
    {"schema": {"const": 1}, "tests": [{"data": 2, "valid": True}, {"data": 1, "valid": False}]},
]  # fmt: skip


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A keyword whose last schema judges wrongly, so that both mistakes are counted."""
    (tmp_path / "strange.json").write_text(json.dumps(CASES))
    return tmp_path


def test_refused_wrong_and_missed_are_counted(suite: Path) -> None:
    row = measure(suite / "strange.json")
    assert row == Row("strange", schemas=3, supported=2, valid=2, missed=1, invalid=2, wrong=1)


def test_something_wrong_is_a_failure(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(suite)]) == 1
    assert "| strange | 2 of 3 | 1 of 2 | 1 of 2 |" in capsys.readouterr().out
    (suite / "strange.json").write_text(json.dumps(CASES[:2]))
    assert main([str(suite)]) == 0


def test_the_chapter_shows_what_was_measured() -> None:
    record = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = [Row(**row) for row in record["rows"]]
    assert sum(row.wrong for row in rows) == 0 and len(rows) > 40
    page = Path(__file__).parents[3] / "phases" / "12-structured-output" / "04-keywords.md"
    text = page.read_text(encoding="utf-8")
    assert "\n".join(table(rows)) in text and record["suite"][:12] in text
