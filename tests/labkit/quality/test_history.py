"""The catalogue of historic bugs: every test it names exists, every row is complete, and every
mistake that can be made here is caught."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from labkit.course.manifest import Course, ManifestError
from labkit.judge.public import task_of
from labkit.quality import history
from labkit.quality.history import Bug
from labkit.quality.survey import sample

ROOT = Path(__file__).parents[3]
HISTORY = ROOT / "upstream_notes" / "HISTORY.md"
COURSE = Course(ROOT)
ROWS = history.catalogue(ROOT)
BUGS = history.load(COURSE)
MADE = [bug for bug in BUGS if not bug.reason]
KINDS = {
    *("conservation", "references", "hashes", "shadow KV", "invariance", "budget", "progress"),
    *("stopping", "round trip", "shapes", "lockstep", "cost"),
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
    assert len(row) == 7, row
    where, cause, state, kind, tests = row[1:6]
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


# ---------------------------------------------------------------- put back into the engine
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_is_put_back_or_says_why_not(row: list[str]) -> None:
    """The last column is what tests/corpora/history says: tasks whose hidden suites catch the
    mistake, "test" where a test of the engine does, or nothing with a reason."""
    mine = [bug for bug in BUGS if bug.row == row[0]]
    assert mine, f"tests/corpora/history has no entry for {row[0]}"
    assert len(mine) == 1 or not any(bug.reason for bug in mine), f"{row[0]}: a bug and a reason"
    assert row[6] == history.shown(mine)


def test_no_entry_without_a_row() -> None:
    assert {bug.row for bug in BUGS} == {row[0] for row in ROWS}


@pytest.mark.parametrize("bug", MADE, ids=lambda bug: bug.id)
def test_what_catches_a_mistake_exists_and_judges_its_module(bug: Bug) -> None:
    """A hidden suite replaces its own phase's modules and no others."""
    if found := history.HIDDEN.fullmatch(bug.caught_by):
        phase = COURSE.phase(found[1][:2])
        assert phase.exercise(found[1]).id == found[1]
        assert set(bug.texts) <= set(phase.modules)
    else:
        path, _, function = bug.caught_by.partition("::")
        assert function in names_in(path)


def test_results_are_of_these_entries() -> None:
    """`labkit history --write` makes them anew; nothing survives."""
    results = json.loads(history.results_file(ROOT).read_text("utf-8"))
    made = {bug.id: bug for bug in MADE}
    assert set(results) == set(made)
    for name, failed in results.items():
        assert failed, f"{name} survived"
        caught_by = made[name].caught_by
        if found := history.HIDDEN.fullmatch(caught_by):
            assert task_of(failed) == found[1]
        else:
            assert caught_by.endswith("::" + failed)


@pytest.mark.serial
def test_a_sample_is_caught_and_an_equal_engine_is_not() -> None:
    """`labkit history`, a part of `make test-full`, puts all of them back. A suite that fails
    whatever it judges would catch everything."""
    module = "mini_vllm.core.block_hash"
    text = COURSE.phase("02").reference_file(module).read_text("utf-8")
    same = Bug("H99", "nothing is changed", "hidden 02.1", {module: text + "\n"})
    quick = [bug for bug in MADE if bug.caught_by.startswith("hidden 02")]
    verdicts = list(history.run(COURSE, [*sample(quick, 1, seed=16), same]))
    survivors = [str(verdict) for verdict in verdicts if not verdict.failed]
    assert len(verdicts) == 2
    assert survivors == ["SURVIVED H99  hidden 02.1     nothing is changed"]


# ---------------------------------------------------------------- entries that are none
CHANGE = {"module": "mini_vllm.core.block_hash", "search": "digest.digest()", "replace": "b''"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"id": "H01"}, "give an id such as H30 or H30b, and either"),
        ({"id": "X1", "reason": "no"}, "give an id such as H30 or H30b"),
        ({"id": "H01", "reason": "no", "mutant": "02-kv-cache/full-hit"}, "keys are id, mutant"),
        (
            {"id": "H01", "mutant": "02-kv-cache/no-such"},
            "tests/corpora/mutants has no '02-kv-cache/no-such'",
        ),
        ({"search": "digest."}, "the search text is 3 times in mini_vllm.core.block_hash"),
        ({"search": "no such line"}, "the search text is 0 times"),
        ({"replace": "("}, "mini_vllm.core.block_hash is no Python any more"),
    ],
)
def test_a_bad_entry_says_what_is_wrong(
    entry: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "id" not in entry:
        changes = [CHANGE | entry]
        entry = {"id": "H01", "what": "w", "caught_by": "hidden 02.1", "changes": changes}
    with pytest.raises(ManifestError, match=re.escape(message)):
        history.load_one(COURSE, "blocks.toml: H01", entry, {})
