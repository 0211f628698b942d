"""Faults that users reported: each case is sent again, and must come out right.

A file of `tests/corpora/reports` is one fault. A case names the way it takes, `room.function`: that
function of `tests/engine/reports/room.py` gets what the case gives, and its answer must be `right`.
What plain data cannot say (a start, a clock, a process) is a test elsewhere, which the file names.
"""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
REPORTS = {
    path.stem: tomllib.loads(path.read_text())
    for path in sorted((ROOT / "tests" / "corpora" / "reports").glob("*.toml"))
}
TEXTS = ("title", "kind", "sent", "wrong", "right", "why")
CASES = [
    pytest.param(case, id=f"{name}-{case['name']}")
    for name, report in REPORTS.items()
    for case in report.get("cases", [])
]


@pytest.mark.parametrize("case", CASES)
def test_what_a_user_sent_comes_out_right(case: dict[str, Any]) -> None:
    room, function = case["through"].split(".")
    way = getattr(importlib.import_module(f"tests.engine.reports.{room}"), function)
    assert way(case["given"]) == case["right"]


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_complete(name: str) -> None:
    report = REPORTS[name]
    missing = [key for key in TEXTS if not report.get(key)]
    assert not missing, f"{name}.toml lacks {missing}"
    assert report["members"], f"{name}.toml names no other member of its kind"
    assert report.get("cases") or report.get("tests"), f"{name}.toml has neither a case nor a test"
    for test in report.get("tests", []):
        path, _, function = test.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        defined = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
        assert function in defined, f"{name}.toml names {test}, which is not there"
