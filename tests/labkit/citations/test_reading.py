"""Which sentences cite, what is shown of them, and what counts as read."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.citations.cli import main
from labkit.citations.lock import read_lock
from labkit.citations.reading import READINGS, claims_in, claims_of, unread, wanted
from labkit.course.manifest import Course
from labkit.course.root import PIN, ROOT

BLOB = f"https://github.com/vllm-project/vllm/blob/{PIN}/vllm/core/pool.py"
POOL = (
    "class Pool:\n    def take(self):\n        return 1\n\n    def give(self):\n        return 2\n"
)
TAKE, GIVE = f"[`Pool.take`]({BLOB}#L2-L3)", f"[`Pool.give`]({BLOB}#L5-L6)"
CHAPTER = f"""\
# A pool

Nothing is cited here. {TAKE} takes one. *How many?* One.
It never takes two; {GIVE} gives. No more.

| what | where |
|---|---|
| takes | {TAKE} |
| gives | {GIVE} |

```
{TAKE} in code is no citation.
```

- A list's item. {GIVE}, too.
- Another.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "labkit").mkdir()
    source = tmp_path / ".upstream" / f"vllm-{PIN[1:]}" / "vllm" / "core" / "pool.py"
    source.parent.mkdir(parents=True)
    source.write_text(POOL, "utf-8")
    chapter = tmp_path / "phases" / "02-pool" / "01-deep-dive.md"
    chapter.parent.mkdir(parents=True)
    chapter.write_text(CHAPTER, "utf-8")
    assert call(tmp_path, "--update") == 0
    return tmp_path


def call(project: Path, *words: str) -> int:
    return main(["--project", str(project), *words])


def test_a_claim_is_a_sentence_and_what_follows_until_the_next_citation() -> None:
    claims = [(claim.line, claim.text.replace(BLOB, "")) for claim in claims_in(CHAPTER, "a.md")]
    assert [line for line, _ in claims] == [3, 4, 8, 9, 15]
    assert claims[0][1] == "[`Pool.take`](#L2-L3) takes one. *How many?* One."
    assert claims[1][1] == "It never takes two; [`Pool.give`](#L5-L6) gives. No more."
    assert claims[2][1] == "| takes | [`Pool.take`](#L2-L3) |"
    assert claims[4][1] == "[`Pool.give`](#L5-L6), too."


def test_each_sentence_is_shown_above_its_lines(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(project, "--read", "02") == 0
    shown = capsys.readouterr().out
    assert "── phases/02-pool/01-deep-dive.md:3 (1 of 5)" in shown
    assert "[`Pool.take`] takes one. *How many?* One." in shown
    assert "     2 │     def take(self):\n     3 │         return 1" in shown
    assert not (project / READINGS).exists()


def test_what_was_recorded_is_not_shown_again(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(project, "--read", "02", "--record") == 0
    assert "recorded 5 readings; 5 sentences" in capsys.readouterr().out
    assert call(project, "--read", "02") == 0
    assert "every citing sentence of 02 was read" in capsys.readouterr().out
    assert call(project, "--read", "02", "--all") == 0
    assert "(5 of 5)" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["sentence", "lines", "place"])
def test_a_change_of_sentence_or_lines_asks_for_a_reader(project: Path, what: str) -> None:
    call(project, "--read", "02", "--record")
    chapter = project / "phases" / "02-pool" / "01-deep-dive.md"
    source = project / ".upstream" / f"vllm-{PIN[1:]}" / "vllm" / "core" / "pool.py"
    if what == "sentence":
        chapter.write_text(CHAPTER.replace("takes one", "takes two"), "utf-8")
    elif what == "lines":
        source.write_text(POOL.replace("return 2", "return 3"), "utf-8")
    else:
        chapter.write_text(CHAPTER.replace("#L2-L3) takes", "#L2-L2) takes"), "utf-8")
    call(project, "--update")
    lines = {claim.line for claim in unread(project, read_lock(project))}
    assert lines == ({4, 9, 15} if what == "lines" else {3})


def test_moving_a_sentence_within_its_file_changes_nothing(project: Path) -> None:
    call(project, "--read", "02", "--record")
    chapter = project / "phases" / "02-pool" / "01-deep-dive.md"
    chapter.write_text("\n\nMore.\n\n" + CHAPTER.replace("One.\nIt", "One. It"), "utf-8")
    assert unread(project, read_lock(project)) == []


def test_the_check_counts_what_waits_for_a_reader(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(project) == 0
    assert "5 citing sentences are new, or changed" in capsys.readouterr().out
    call(project, "--read", "02", "--record")
    assert call(project) == 0
    assert "every citing sentence was read since it last changed" in capsys.readouterr().out


def test_reading_needs_the_source(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(project, "--read", "02", "--source", str(project / "nowhere")) == 2
    assert "make upstream" in capsys.readouterr().out


def test_a_phase_a_folder_or_the_notes_can_be_read() -> None:
    claims = claims_of(ROOT)
    assert {claim.file.split("/")[0] for claim in wanted(claims, "notes")} == {"upstream_notes"}
    assert wanted(claims, "upstream_notes/v1/request.md")
    assert all("03-scheduler" in claim.file for claim in wanted(claims, "03"))
    assert Course(ROOT).phase("03").slug == "03-scheduler"
