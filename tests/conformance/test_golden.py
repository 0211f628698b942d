"""Every decision of vLLM's own scheduler, recorded, against ours: block ids included."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from labkit.citations.upstream import COMMIT, VERSION
from labkit.course.manifest import Course
from labkit.course.root import ROOT
from labkit.quality import alternatives
from labkit.trace import golden
from labkit.trace.conformance import without
from labkit.trace.coverage import features
from labkit.trace.diff import first_difference
from labkit.trace.format import load_trace
from labkit.trace.generate import deliberate_difference, generate
from labkit.trace.kinds import ALL_KINDS, ASYNC_KINDS, FEATURE_KINDS, kinds_of
from labkit.trace.runner import ReferenceSubject, replay
from mini_vllm.config.profiles import RELEASES, SchedulerRules
from mini_vllm.core.scheduler import Scheduler

GOLDENS = golden.select()
SCHEDULER = Course(ROOT).phase("03")
FEATURE_GOLDENS = golden.select(FEATURE_KINDS)
ASYNC_GOLDENS = golden.load(golden.ASYNC)
CURRENT_GOLDENS = golden.load("current")


@pytest.mark.parametrize("recorded", ASYNC_GOLDENS, ids=lambda recorded: recorded.name)
def test_we_decide_as_vllms_async_scheduler_did(recorded: golden.Golden) -> None:
    """Each step is planned before the one before is taken in."""
    assert recorded.trace.config.async_scheduling
    difference = golden.mismatch(recorded, "mini_vllm")
    assert difference is None, difference


@pytest.mark.parametrize("recorded", CURRENT_GOLDENS, ids=lambda recorded: recorded.name)
def test_under_the_rules_of_a_newer_release_we_decide_as_it_did(recorded: golden.Golden) -> None:
    assert recorded.trace.config.profile == "current"
    difference = golden.mismatch(recorded, "mini_vllm")
    assert difference is None, difference


@pytest.mark.parametrize("rule", [field.name for field in fields(SchedulerRules)])
def test_each_rule_of_the_newer_release_shows_in_its_recordings(rule: str) -> None:
    """Without it, some recording is replayed otherwise. Those that were sought out come last."""
    with without(rule, "current"):
        assert any(golden.mismatch(recorded) for recorded in reversed(CURRENT_GOLDENS))


def test_the_newer_recordings_say_which_release_they_come_from() -> None:
    facts = golden.facts("current")
    assert facts["upstream"] == f"vllm {RELEASES['current']}"
    kinds = {(g.kind, g.trace.config.async_scheduling) for g in CURRENT_GOLDENS}
    loops = (False, True)
    assert kinds == {(kind, loop) for loop in loops for kind in kinds_of("current", loop)}


def test_late_results_are_recorded_under_every_pressure() -> None:
    assert {g.kind for g in ASYNC_GOLDENS} == set(ASYNC_KINDS)
    shown = frozenset().union(*(g.features for g in ASYNC_GOLDENS))
    assert shown >= {
        "preemption", "resumed-hit", "eos", "stop-token", "max-tokens", "max-model-len",
        "abort-running", "output-hit", "scheduled-victim",
    }  # fmt: skip


@pytest.mark.parametrize("name", [g.name for g in GOLDENS + FEATURE_GOLDENS])
def test_we_decide_as_vllm_did(name: str) -> None:
    recorded = next(g for g in GOLDENS + FEATURE_GOLDENS if g.name == name)
    difference = golden.mismatch(recorded, "mini_vllm")
    assert difference is None, difference


@pytest.mark.parametrize("name", alternatives.names(SCHEDULER))
def test_an_older_solved_lab_decides_about_transfers_as_vllm_did(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `_try_admit` knows nothing of connectors; the KV cache manager tells it what is there."""
    solved: dict[str, Any] = {"__name__": "solved"}
    exec(alternatives.build(SCHEDULER, name)[Scheduler.__module__], solved)
    monkeypatch.setattr(Scheduler, "_try_admit", solved["Scheduler"]._try_admit)
    for recorded in golden.load("external"):
        difference = golden.mismatch(recorded, name)
        assert difference is None, difference


def test_there_are_enough_of_every_profile() -> None:
    assert len(GOLDENS) >= 64
    for kind in ALL_KINDS:
        assert len(golden.select(kind)) >= 8


def test_recordings_say_what_they_come_from() -> None:
    for kind in ALL_KINDS:
        facts = golden.facts(kind)
        assert facts["upstream"] == f"vllm {VERSION}"
        assert facts["commit"] == COMMIT
        assert facts["command"] == "python -m labkit conformance --record"
        assert facts["steps"] == sum(len(g.lines) for g in golden.select(kind))


def test_recorded_traces_are_generated_ones_without_deliberate_differences() -> None:
    for recorded in (*GOLDENS, *FEATURE_GOLDENS):
        assert deliberate_difference(recorded.trace) is None
    first = golden.select("priority", limit=1)[0]
    assert first.trace == generate("priority", first.seed, 60)
    assert first.features == features(first.trace, first.lines)


def test_recordings_are_small() -> None:
    assert sum(file.stat().st_size for file in golden.FOLDER.iterdir()) < 1_500_000


def test_select_filters_by_profile_and_feature() -> None:
    calm = golden.select(["mixed", "prefix"], having=["prefix-hit"], without=["preemption"])
    assert calm and {g.kind for g in calm} <= {"mixed", "prefix"}
    assert all("prefix-hit" in g.features and "preemption" not in g.features for g in calm)
    assert not any(line["preempted"] for g in calm for line in g.lines)
    assert golden.select(limit=3) == GOLDENS[:3]
    with pytest.raises(ValueError, match="no feature 'preempted'"):
        golden.select(having=["preempted"])
    with pytest.raises(ValueError, match="no kind 'all'"):
        golden.select("all")


def test_a_wrong_decision_is_shown_with_its_step() -> None:
    """The comparison itself must be able to fail."""
    recorded = golden.select("pressure", having=["preemption"])[0]
    step = next(line["step"] for line in recorded.lines if line["preempted"])
    changed = [dict(line) for line in recorded.lines]
    changed[step]["preempted"] = []
    text = golden.mismatch(replace(recorded, lines=changed), "mini_vllm")
    assert text is not None
    assert f"golden trace {recorded.name}\nFirst difference at step {step}: preempted\n" in text


def test_recorded_drafts_were_accepted_rejected_cut_and_dropped() -> None:
    """What can happen to a draft has happened in a recording, with every kind of drafter."""
    drafted = [line for g in FEATURE_GOLDENS for line in g.lines if line.get("spec")]
    verified = [
        (len(drafts), len(line["sampled"].get(name, [])))
        for line in drafted
        for name, drafts in line["spec"].items()
    ]
    assert any(said == count + 1 for count, said in verified)
    assert any(0 < said <= count for count, said in verified)
    methods = {g.trace.config.spec_method for g in golden.select("drafts")}
    assert methods == {"ngram", "draft_model", "eagle"}
    assert any("preemption" in g.features for g in FEATURE_GOLDENS)


def test_a_stream_of_one_adapter_starves_another() -> None:
    """One slot, and a new request of adapter a before the last one ends: b, first in line, waits
    until the stream dries up. vLLM's scheduler does the same, as recorded:
    `python -m labkit trace run phases/11-lora/starvation.json --impl vllm`."""
    trace = load_trace(ROOT / "phases" / "11-lora" / "starvation.json")
    recorded = Path(__file__).parent / "stories" / "starvation.jsonl"
    theirs = [json.loads(line) for line in recorded.read_text(encoding="utf-8").splitlines()]
    ours = list(replay(trace, ReferenceSubject(trace.config)))
    assert first_difference(ours, theirs) is None
    served = next(line["step"] for line in theirs if "b" in line["scheduled"])
    assert served == 9 and all(line["waiting"] == ["b"] for line in theirs[:served])
    assert sum(name != "b" for line in theirs[:served] for name, _, _ in line["finished"]) == 5
