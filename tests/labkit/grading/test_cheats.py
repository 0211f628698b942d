"""The cheat corpus: ways to pass without solving the task. Not one is accepted.

A cheat is a file of `tests/corpora/cheats/`; `cheats.toml` says what must come of it. Each meets
the hidden test of its task twice: alone, in a sandboxed worker of this process, which is quick; and
in the whole grader, with pytest between them, which is slow. In both a correct solution passes.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.course.console import course
from labkit.course.manifest import Phase
from labkit.course.skeleton import skeleton
from labkit.grading import grade
from labkit.grading.grade import Judged
from labkit.inside import child
from labkit.judge import counterexample, hidden
from labkit.sandbox import build as sandbox
from labkit.sandbox.build import Sandbox
from labkit.sandbox.isolation import LADDER
from tests.labkit.hand_in import beside, contents

CORPUS = Path(__file__).parents[2] / "corpora" / "cheats"
TABLE = tomllib.loads((CORPUS / "cheats.toml").read_text(encoding="utf-8"))
CHEATS = {entry["file"]: entry for entry in TABLE["cheats"]}
ELSEWHERE = [name for name, entry in CHEATS.items() if "phase" in entry]
HERE = [name for name in CHEATS if name not in ELSEWHERE]
CATALOGUE = set(range(47, 80))
TESTS = {"00.1": "test_00_1_every_status", "00.2": "test_00_2_counts_match"}
TESTS["00.4"] = "test_00_4_every_pair"
"""The hidden test that a cheat of a task meets alone."""
SHORT = 1.5
"""For an answer, where a cheat may hang; the others get the grader's own time."""


@pytest.fixture(scope="module")
def phase() -> Phase:
    return course().phase("00")


@pytest.fixture(scope="module")
def rung(phase: Phase) -> str:
    """The strongest rung here."""
    return sandbox.choose_rung(phase)[0].name


def submission(phase: Phase, name: str) -> str:
    """The cheat behind what it stands behind."""
    module = phase.modules[0]
    whole = phase.reference_file(module).read_text(encoding="utf-8")
    is_right = CHEATS[name].get("whole") or CHEATS[name].get("right")
    base = whole if is_right else skeleton(phase, module)
    return base + "\n\n" + (CORPUS / f"{name}.py").read_text(encoding="utf-8")


def skip_below(rung: str, name: str) -> None:
    """Skip a cheat that this machine's strongest rung cannot reject; it has not run then."""
    needed = CHEATS[name].get("rung", "plain")
    ladder = list(LADDER)
    if ladder.index(rung) > ladder.index(needed):
        pytest.skip(f"not run: it takes the rung {needed!r} to reject it; here is only {rung!r}")


# ---------------------------------------------------------------- the table
def test_the_table_and_the_folder_agree() -> None:
    assert {path.stem for path in CORPUS.glob("*.py")} == set(CHEATS)
    assert {CHEATS[name].get("task", "00.1") for name in HERE} <= set(TESTS)


def test_every_cheat_of_the_catalogue_is_here_or_left_out_for_a_reason() -> None:
    here = {int(name.partition("_")[0]) for name in CHEATS}
    left_out = {entry["number"]: entry["reason"] for entry in TABLE["left_out"]}
    assert here.isdisjoint(left_out)
    assert here | set(left_out) >= CATALOGUE
    assert all(len(reason.split()) >= 8 for reason in left_out.values())


# ---------------------------------------------------------------- alone with its hidden test
@pytest.fixture(scope="module")
def reference(phase: Phase) -> Iterator[hidden.Observed]:
    with hidden.Observed(phase.root, {}, child.Limits(60), "reference") as worker:
        yield worker  # type: ignore[misc]


@pytest.fixture(scope="module")
def meet(phase: Phase, rung: str, reference: hidden.Observed) -> Callable[..., tuple[str, str]]:
    """Let a submission meet the hidden test of a task: ("", what it was asked) if it passes, else
    the kind of failure."""
    path = next(phase.hidden_tests.glob("test_request.py"))
    spec = importlib.util.spec_from_file_location("hidden_tests_of_cheats", path)
    assert spec and spec.loader
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)

    def run(
        text: str, task: str, seconds: float = hidden.ANSWER_SECONDS, test: str = ""
    ) -> tuple[str, str]:
        box = Sandbox(phase, contents(phase, text), LADDER[rung])
        with hidden.Subject(phase, box) as subject:
            assert isinstance(subject, hidden.Subject)
            subject.limits = dataclasses.replace(subject.limits, seconds=seconds)
            subject.enter(task)
            kind = ""
            try:
                subject.call("labkit.inside.basic:ping")  # a first answer has more than `seconds`
                getattr(suite, test or TESTS[task])(subject=subject, reference=reference)
                subject.check_names()
            except (Exception, hidden.TaskLost) as error:
                kind = hidden.kind_of(subject, reference, error)
            return kind, counterexample.text(*subject.asked, subject.seen)

    return run


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", HERE)
def test_no_cheat_passes_its_hidden_test(phase: Phase, rung: str, meet: Any, name: str) -> None:
    if (name, rung) == ("66_kill_the_parent", "plain"):
        pytest.skip("not run: it would kill this pytest; the whole grader has one of its own below")
    skip_below(rung, name)
    entry = CHEATS[name]
    seconds = SHORT if "endless loop" in entry["kinds"] else hidden.ANSWER_SECONDS
    task, test = entry.get("task", "00.1"), entry.get("test", "")
    kind, asked = meet(submission(phase, name), task, seconds, test)
    assert kind in entry["kinds"]
    assert "LEAKED" not in asked


@pytest.mark.parametrize("task", TESTS)
def test_a_correct_solution_passes_every_hidden_test(phase: Phase, meet: Any, task: str) -> None:
    text = phase.reference_file(phase.modules[0]).read_text(encoding="utf-8")
    assert meet(text, task)[0] == ""


@pytest.mark.parametrize("task", TESTS)
def test_a_skeleton_passes_no_hidden_test(phase: Phase, meet: Any, task: str) -> None:
    assert meet(skeleton(phase, phase.modules[0]), task)[0] == "open TODO"


# ---------------------------------------------------------------- in the whole grader
def judge(phase: Phase, folder: Path, text: str, tasks: list[str], rung: str) -> Judged:
    file = folder / "request.py"
    file.write_text(text, encoding="utf-8")
    return grade.judge(phase, beside(phase, file), 12345, rung, tasks)


@pytest.mark.slow
@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_grader_accepts_no_cheat_in_other_phases(tmp_path: Path, name: str) -> None:
    entry = CHEATS[name]
    phase = course().phase(entry["phase"])
    files = {module: phase.reference_file(module) for module in phase.modules}
    (module,) = (task.module for task in phase.exercises if task.id == entry["task"])
    cheat = (CORPUS / f"{name}.py").read_text(encoding="utf-8")
    text = files[module].read_text(encoding="utf-8") + "\n\n" + cheat
    files[module] = tmp_path / phase.lab_file(module).name
    files[module].write_text(text, encoding="utf-8")
    (group,) = grade.judge(phase, files, 12345, tasks=[entry["task"]]).result.groups
    assert group.earned == 0 and group.kind in entry["kinds"]


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_the_grader_accepts_no_cheat(
    phase: Phase, tmp_path: Path, rung: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_below(rung, name)
    check(phase, tmp_path, name, rung, capsys)


def test_a_grader_without_isolation_survives_a_killed_pytest(
    phase: Phase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worst of them on the weakest rung, so that one meets the whole grader in every run."""
    check(phase, tmp_path, "66_kill_the_parent", "plain", capsys)


def check(
    phase: Phase, folder: Path, name: str, rung: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = CHEATS[name]
    task = entry.get("task", "00.1")
    whole = bool(entry.get("whole"))
    tasks = [exercise.id for exercise in phase.exercises] if whole else [task]
    judged = judge(phase, folder, submission(phase, name), tasks, rung)
    graded = judged.result
    assert graded.status == "graded", graded.problem
    assert [group.id for group in graded.groups] == tasks, "the grader judged all it was asked for"
    for group in graded.groups:
        if group.id == task:
            assert (group.status, group.earned) == ("failed", 0)
            assert group.kind in entry["kinds"]
        else:
            assert group.status == "passed", f"{group.id} has nothing to do with it: {group.kind}"
    grade.show(phase, judged, reveal=True)
    seen = capsys.readouterr().out + json.dumps(dataclasses.asdict(graded))
    assert "LEAKED" not in seen


@pytest.mark.slow
def test_a_correct_solution_passes_in_the_same_grader(
    phase: Phase, tmp_path: Path, rung: str
) -> None:
    text = phase.reference_file(phase.modules[0]).read_text(encoding="utf-8")
    tasks = [exercise.id for exercise in phase.exercises]
    assert judge(phase, tmp_path, text, tasks, rung).result.passed
