"""The lockstep test itself: it counts what it compares, and it catches a scheduler that differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from labkit.trace import conformance
from labkit.trace.conformance import (
    Case,
    Mismatch,
    Tally,
    endless_cases,
    replay_ours,
    run_cases,
    until,
)
from labkit.trace.differences import load_all, record_theirs
from labkit.trace.format import Trace, load_trace
from labkit.trace.kinds import KINDS
from labkit.trace.oracle import Answer, Environment, Oracle, OracleError
from labkit.trace.runner import ReferenceSubject, replay
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request


class PreemptsTheOldest(Scheduler):
    """A mistake that shows only under pressure."""

    def _pick_victim(self) -> Request:
        return self.running[0]


class FakeOracle:
    """Stands in for vLLM's process: replays on one of our classes."""

    version = "0.22.1"

    def __init__(self, scheduler_class: type[Scheduler]) -> None:
        self.scheduler_class = scheduler_class

    def replay(self, trace: Trace) -> Answer:
        return Answer(list(replay(trace, ReferenceSubject(trace.config, self.scheduler_class))))

    def replay_all(self, traces: Iterable[Trace]) -> Iterator[Answer]:
        return map(self.replay, traces)


def tally() -> Tally:
    return Tally(Counter(), Counter(), Counter())


def test_equal_schedulers_pass_and_every_step_is_counted() -> None:
    counted = tally()
    cases = [Case(kind, 7, 20) for kind in KINDS]
    run_cases(FakeOracle(Scheduler), cases, counted)  # type: ignore[arg-type]
    assert counted.traces == Counter(dict.fromkeys(KINDS, 1))
    assert counted.steps["stop"] == len(replay_ours(Case("stop", 7, 20).trace).lines)


def test_a_difference_stops_the_run_and_is_shrunk_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    oracle = FakeOracle(PreemptsTheOldest)
    cases = until(endless_cases(["pressure"], 0, 40), tally(), 100_000)
    with pytest.raises(Mismatch) as caught:
        run_cases(oracle, cases, tally())  # type: ignore[arg-type]
    conformance.report_mismatch(oracle, caught.value, tmp_path)  # type: ignore[arg-type]
    text = capsys.readouterr().out
    command = caught.value.case.command
    assert f"  {command}\n" in text and "labkit conformance --kind pressure --seed" in text
    assert "First difference at step" in text and "mini_vllm  " in text and "vLLM       " in text
    (file,) = tmp_path.iterdir()
    small = load_trace(file)
    assert len(small.events) <= 4 < len(caught.value.trace.events)
    assert conformance.compare(replay_ours(small), oracle.replay(small)) is not None


def test_the_run_ends_once_enough_steps_are_compared() -> None:
    counted = tally()
    cases = list(until(endless_cases(list(KINDS), 0, 20), counted, 0))
    assert cases == []
    counted.steps["mixed"] = 99
    assert next(until(endless_cases(["stop"], 5, 20), counted, 100)) == Case("stop", 5, 20)


def test_an_error_of_one_side_is_a_difference() -> None:
    found = conformance.compare(Answer([], "NoProgressError: stuck"), Answer([]))
    assert found is not None and found.left == {"step": 0, "error": "NoProgressError: stuck"}


@pytest.mark.parametrize(
    ("profile", "words"), [("v0.22", "--install`"), ("current", "--install --profile current`")]
)
def test_without_vllm_the_message_names_the_command(
    profile: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.trace.oracle.ROOT", tmp_path)
    with pytest.raises(OracleError, match=f"labkit conformance {words}"):
        Oracle(Environment.of(profile))


@pytest.mark.parametrize(
    ("words", "profile", "kind"),
    [
        ([], "v0.22", None),
        (["--profile", "current"], "current", None),
        (["--profile", "current", "--kind", "hybrid"], "current", "hybrid"),
        (["--profile", "hybrid"], "v0.22", "hybrid"),
    ],
)
def test_a_profile_is_a_release_and_a_kind_is_still_taken(
    words: list[str], profile: str, kind: str | None
) -> None:
    options = conformance._parse(words)
    assert (options.profile, options.kind) == (profile, kind)


@pytest.mark.upstream
def test_vllm_itself_still_does_what_was_recorded() -> None:
    if not Environment.of().installed():
        pytest.skip("vLLM's scheduler is not installed: python -m labkit conformance --install")
    with Oracle() as oracle:
        run_cases(oracle, [Case(kind, 500, 30) for kind in KINDS], tally())
        for difference in load_all():
            again = record_theirs(difference, oracle.replay)
            assert (again.outcome, again.theirs) == (difference.outcome, difference.theirs)
