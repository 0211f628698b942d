"""The catalogue of historic bugs: every test it names exists, every row is complete."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HISTORY = ROOT / "upstream_notes" / "HISTORY.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in HISTORY.read_text("utf-8").splitlines()
    if re.match(r"\| H\d\d \|", line)
]
KINDS = {
    *("conservation", "references", "hashes", "shadow KV", "invariance", "budget", "progress"),
    *("stopping", "round trip", "shapes", "lockstep"),
}


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of the test functions of a file, methods of classes included."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_ids_count_up() -> None:
    assert [row[0] for row in ROWS] == [f"H{n:02d}" for n in range(1, len(ROWS) + 1)]
    assert len(ROWS) >= 90


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_row_is_complete_and_its_tests_exist(row: list[str]) -> None:
    assert len(row) == 6, row
    where, cause, state, kind, tests = row[1:]
    assert where and state and cause.endswith((".", "`")), row
    assert kind in KINDS, f"{kind!r} is not one of {sorted(KINDS)}"
    if re.fullmatch(r"phase \d\d|none: \S.*", tests):
        return
    named = re.findall(r"`([^`]+)`", tests)
    assert named, f"{row[0]} names no test, no phase and no reason: {tests!r}"
    for name in named:
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), f"{row[0]}: there is no {path}"
        assert function in names_in(path), f"{row[0]}: {path} has no {function}"


def test_most_rows_are_guarded_by_a_test() -> None:
    guarded = [row for row in ROWS if "::" in row[5]]
    assert len(guarded) >= 70, f"{len(guarded)} of {len(ROWS)}"


def test_links_name_an_issue_of_the_right_project() -> None:
    links = re.findall(r"\[([^\]]+)\]\((https://github\.com/[^)]+)\)", HISTORY.read_text("utf-8"))
    numbered = [(text, url) for text, url in links if "/issues/" in url]
    assert len(numbered) >= 100
    for text, url in numbered:
        assert url.endswith("/" + text.rpartition("#")[2]), (text, url)
