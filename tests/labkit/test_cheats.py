"""The cheat corpus: ways to pass without solving the task, each graded by the real grader.

A cheat is a file of `tests/cheats/`; `cheats.toml` says what must come of it. A correct solution
passes in the same harness, and a skeleton without any cheat fails.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest

from labkit import grade, sandbox
from labkit.grade import Judged
from labkit.isolation import LADDER
from labkit.loop import course
from labkit.manifest import Phase
from labkit.skeleton import skeleton

CORPUS = Path(__file__).parents[1] / "cheats"
ENTRIES = tomllib.loads((CORPUS / "cheats.toml").read_text(encoding="utf-8"))["cheats"]
CHEATS = {entry["file"]: entry for entry in ENTRIES}
NOT_A_CHEAT = {79}


@pytest.fixture(scope="module")
def phase() -> Phase:
    return course().phase("00")


@pytest.fixture(scope="module")
def rung(phase: Phase) -> str:
    """The strongest rung here."""
    return sandbox.choose_rung(phase)[0].name


def judge(phase: Phase, folder: Path, text: str, tasks: list[str], rung: str) -> Judged:
    file = folder / "request.py"
    file.write_text(text, encoding="utf-8")
    return grade.judge(phase, {phase.modules[0]: file}, 12345, rung, tasks)


def submission(phase: Phase, name: str) -> str:
    """The cheat behind what it stands behind."""
    module = phase.modules[0]
    whole = phase.reference_file(module).read_text(encoding="utf-8")
    base = whole if CHEATS[name].get("whole") else skeleton(phase, module)
    return base + "\n\n" + (CORPUS / f"{name}.py").read_text(encoding="utf-8")


def test_the_table_and_the_folder_agree() -> None:
    assert {path.stem for path in CORPUS.glob("*.py")} == set(CHEATS)
    numbers = {int(name[:2]) for name in CHEATS}
    assert set(range(47, 80)) - NOT_A_CHEAT <= numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_is_accepted(
    phase: Phase, tmp_path: Path, rung: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = CHEATS[name]
    needed = entry.get("rung", "plain")
    ladder = list(LADDER)
    if ladder.index(rung) > ladder.index(needed):
        pytest.skip(f"not run: it takes the rung {needed!r} to reject it; here is only {rung!r}")
    check(phase, tmp_path, name, rung, capsys)


@pytest.mark.slow
def test_a_grader_without_isolation_survives_a_killed_pytest(
    phase: Phase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
def test_a_correct_solution_passes_in_the_same_harness(
    phase: Phase, tmp_path: Path, rung: str
) -> None:
    text = phase.reference_file(phase.modules[0]).read_text(encoding="utf-8")
    tasks = [exercise.id for exercise in phase.exercises]
    assert judge(phase, tmp_path, text, tasks, rung).result.passed


@pytest.mark.slow
def test_a_skeleton_without_a_cheat_fails(phase: Phase, tmp_path: Path, rung: str) -> None:
    text = skeleton(phase, phase.modules[0])
    graded = judge(phase, tmp_path, text, ["00.1"], rung).result
    assert [group.kind for group in graded.groups] == ["open TODO"]
