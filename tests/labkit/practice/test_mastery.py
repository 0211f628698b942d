"""What is counted, what the portfolio shows, and the sheet for an oral examination."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.course.manifest import Course
from labkit.course.root import ROOT
from labkit.course.state import State
from labkit.learner.commands import judge_and_show
from labkit.practice import copies, portfolio, portfolio_page, viva
from labkit.practice.mastery import mastery
from tests.labkit.toy_course import lab, make_course, solve

COURSE = Course(ROOT)
STEP = {
    "step": 0,
    "scheduled": {"r0": 3},
    "preempted": [],
    "finished": [],
    "aborted": [],
    "new_block_ids": {"r0": [1]},
    "computed": {"r0": 3},
    "running": ["r0"],
    "waiting": [],
    "free_blocks": 7,
    "added": {"r0": 3},
    "config": {"block_size": 16, "num_gpu_blocks": 8},
}
"""A recording of one step."""


def test_mastery_counts_all_four(tmp_path: Path) -> None:
    state, phase = State(tmp_path), COURSE.phase("03")
    assert mastery(phase, state).words() == "debugged 0/4 · changed 0/5"
    state.put("hunts", "03.1", {"solved": "now"})
    state.put("changes", "03.2", {"solved": "now"})
    state.put("quiz", "03/tokens-of-a-step", {"asked": 4, "right": 3})
    state.put("predictions", "P03.1", {"guess": 9, "actual": 10})
    state.put("predictions", "P03.2", {"guess": 1, "actual": 10})
    assert mastery(phase, state).words() == "debugged 1/4 · changed 1/5 · predicted 4/6"


def test_the_portfolio_shows_what_was_done_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(tmp_path)
    state.put("phases", "03-scheduler", {"passed": ["03.2"]})
    state.put("hunts", "03.1", {"solved": "now"})
    monkeypatch.setattr(portfolio, "State", lambda root: State(tmp_path))
    shown = portfolio.Shown(
        [("tokens a second", "41", "43")],
        [("Hugging Face transformers", "17")],
        [STEP],
        [("my scheduler", "9.10", "8.02")],
    )
    html = portfolio.page(COURSE, shown)
    assert "1 of " in html
    assert "Scheduler._clamp_new_tokens" in html and "Long answers forget what they said" in html
    assert "<td>41</td><td>43</td>" in html
    assert "transformers, tokens a second</td><td></td><td>17</td>" in html
    assert "<td>9.10</td><td>8.02</td>" in html
    assert 'srcdoc="&lt;!' in html and "A run of my engine" in html
    assert "<code>mini_vllm.core.scheduler</code></td><td>1 of" in html
    assert "<code>mini_vllm.core.request_queue</code></td><td>the reference" in html
    assert "Thirty-three" not in html and not re.search(
        r"https?://(?!www\.w3\.org/)", html.partition("<body>")[2]
    )


def test_nothing_written_nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "State", lambda root: State(tmp_path))
    shown = portfolio.look(COURSE)
    assert not any((shown.runs, shown.others, shown.recording, shown.arena))


@pytest.mark.slow
def test_the_portfolio_runs_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = COURSE.phase("02")
    state = State(tmp_path)
    state.put("phases", phase.slug, {"passed": [task.id for task in phase.exercises]})
    monkeypatch.setattr(portfolio, "State", lambda root: State(tmp_path))
    monkeypatch.setattr(type(phase), "lab_file", lambda self, module: self.reference_file(module))
    shown = portfolio.look(COURSE)
    rows = shown.runs
    assert {name for name, _ in shown.others} == {"Hugging Face transformers", "vLLM"}
    assert shown.others[0][1].isdigit() and float(shown.others[0][1]) > 0
    assert len(shown.recording) >= 48 and len(shown.recording[0]["added"]) == 4
    assert "<iframe" in portfolio.page(COURSE, shown)
    assert [row[0] for row in rows][:1] == ["tokens a second"]
    assert dict((row[0], row[1:]) for row in rows)["tokens"] == ("192", "192")


@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.slug)
def test_a_sheet_has_questions_with_answers(phase: object) -> None:
    text = viva.sheet(phase, 7)  # type: ignore[arg-type]
    assert text == viva.sheet(phase, 7) != viva.sheet(phase, 8)  # type: ignore[arg-type]
    assert text.count("## ") == text.count("*A good answer:*") >= 2
    assert "*A good answer:*" not in viva.sheet(phase, 7, answers=False)  # type: ignore[arg-type]


def test_what_was_reset_counts_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress and portfolio speak of the files as they are, and a change request begins with a
    module that is whole."""
    make_course(tmp_path)
    toy = Course(tmp_path)
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    fresh = lab(toy).read_text()
    solve(toy)
    phase, module = toy.phase("0"), "toy.fifo"
    assert judge_and_show(phase) is False, "the notebook is open"
    assert portfolio.own_modules(toy).keys() == {module}
    assert copies.own_text(phase, module) == lab(toy).read_text()
    assert {name for name, _ in portfolio_page.written(phase, State(tmp_path))} >= {"clamp"}
    lab(toy).write_text(fresh)
    assert portfolio.own_modules(toy) == {} and copies.own_text(phase, module) is None
    assert portfolio_page.written(phase, State(tmp_path)) == []
    assert mastery(phase, State(tmp_path)).built[0] == 0
