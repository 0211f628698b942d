"""`lab 03 --profile current`: which rules of a newer vLLM a module follows, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.course.manifest import Course, ManifestError
from labkit.course.root import ROOT
from labkit.learner import releases

PHASE = Course(ROOT).phase("03")
SCHEDULER = "mini_vllm.core.scheduler"
RULES = (
    "lone_prefill_uncapped", "skipped_keep_their_queue", "victim_moves_position",
    "stop_ignores_min_tokens", "lookahead_at_admission",
)  # fmt: skip
NEEDED = "num_output_tokens >= params.min_tokens or self.rules.stop_ignores_min_tokens"


def test_a_module_that_follows_the_pin_alone_is_told_which_rule_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PHASE.reference_file(SCHEDULER).read_text(encoding="utf-8")
    assert NEEDED in text
    file = tmp_path / "scheduler.py"
    file.write_text(text.replace(NEEDED, NEEDED.partition(" or ")[0]), encoding="utf-8")
    monkeypatch.setattr("labkit.process.overlay.mapping_for", lambda phases: {SCHEDULER: str(file)})
    monkeypatch.setattr("labkit.judge.diagnose.before", lambda phase, notebook: None)
    assert not releases.judge_and_show(PHASE, "current")
    said = capsys.readouterr().out
    assert "✗ `stop_ignores_min_tokens`" in said and "in `check_stop`" in said
    assert "next: 1 of 5 rules are not followed" in said
    assert [rule for rule in RULES if f"✓ `{rule}`" in said] == [
        r for r in RULES if "stop" not in r
    ]
    assert max(map(len, said.splitlines())) <= 100


def test_the_reference_follows_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labkit.process.overlay.mapping_for", lambda phases: {})
    assert releases.judge_and_show(PHASE, "current")
    assert "all 5 rules of vLLM 0.32.0 are followed" in capsys.readouterr().out


def test_what_cannot_be_asked_is_said() -> None:
    with pytest.raises(ManifestError, match="no profile 'newest'; it must be one of"):
        releases.judge_and_show(PHASE, "newest")
    with pytest.raises(ManifestError, match="asks anything of phase 02's functions"):
        releases.judge_and_show(Course(ROOT).phase("02"), "current")
