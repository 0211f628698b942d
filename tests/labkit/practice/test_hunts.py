"""Bug hunts: every symptom can be seen, and a learner's files stay as they are."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest
import typer

from labkit.course import source
from labkit.course.console import Screen
from labkit.course.files import write_text
from labkit.course.manifest import Course, ManifestError, Phase
from labkit.course.root import ROOT
from labkit.course.state import State
from labkit.judge import mistakes, public
from labkit.practice import copies, hunt_command, hunts
from labkit.practice.hunts import Hunt

PHASES = [phase for phase in Course(ROOT).ready if phase.number > "01"]
HUNTS = [hunt for phase in PHASES for hunt in hunts.load(phase)]
QUICK = ("02.1", "02.4", "02.5", "02.6", "03.4", "06.5", "07.1", "08.2", "16.2")
"""Hunts whose scripts take a second or two; the others wait for `make test-full`."""


def mapping(hunt: Hunt, folder: Path, text: str) -> dict[str, str]:
    file = folder / "module.py"
    file.write_text(text, encoding="utf-8")
    return {hunt.mistake.module: str(file)}


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.slug)
def test_every_phase_has_three(phase: Phase) -> None:
    assert len(hunts.load(phase)) >= 3


@pytest.mark.parametrize("hunt", HUNTS, ids=lambda hunt: hunt.id)
def test_a_hunt_says_no_more_than_a_user_would(hunt: Hunt) -> None:
    name = hunt.mistake.function.rpartition(".")[2]
    assert name not in hunt.title + hunt.symptom
    assert hunt.symptom and hunt.story and all(hunt.clues)
    assert not hunt.row or hunts.row_text(hunt), f"{hunt.row} is no row of HISTORY.md"


@pytest.mark.parametrize("hunt", HUNTS, ids=lambda hunt: hunt.id)
def test_the_mistake_is_written_as_code_is(hunt: Hunt) -> None:
    """What no engine would have, such as `if False`, shows the place before the report is read."""
    wrong = source.function_text(
        hunt.mistake.text, source.find(hunt.mistake.text, hunt.mistake.function)
    )
    assert max(map(len, wrong.splitlines())) <= 100
    for node in ast.walk(ast.parse(textwrap.dedent(wrong))):
        if isinstance(node, ast.If | ast.IfExp):
            assert not isinstance(node.test, ast.Constant), ast.unparse(node)
        if isinstance(node, ast.Assign):
            assert ast.unparse(node.targets[0]) != ast.unparse(node.value), ast.unparse(node)


@pytest.mark.parametrize(
    "hunt",
    [
        pytest.param(hunt, marks=() if hunt.id in QUICK else pytest.mark.slow, id=hunt.id)
        for hunt in HUNTS
    ],
)
def test_the_symptom_shows(hunt: Hunt, tmp_path: Path) -> None:
    seen = hunts.observe(hunt, mapping(hunt, tmp_path, hunt.mistake.text))
    expected = hunts.observe(hunt, {})
    assert expected == hunts.observe(hunt, {}), "what is right is not the same each time"
    assert expected and "Error" not in expected and "Traceback" not in expected
    assert seen != expected


SLOW_ENGINES = [hunt for hunt in HUNTS if hunt.wrong_fixes]
WRONG = [(hunt, wrong) for hunt in SLOW_ENGINES for wrong in hunt.wrong_fixes]
FIGURE = re.compile(r"([\d.]+) times")


def last_figure(said: str) -> float:
    """How much more work the largest input takes, as the script says in its last line; 0 if the
    engine did not get so far."""
    found = FIGURE.search(said.splitlines()[-1])
    return float(found[1]) if found else 0.0


def test_eight_engines_are_right_and_slow() -> None:
    assert len(SLOW_ENGINES) >= 8
    for hunt in SLOW_ENGINES:
        assert len({wrong.name for wrong in hunt.wrong_fixes}) >= 2, hunt.id
        assert {wrong.function for wrong in hunt.wrong_fixes} == {hunt.mistake.function}, hunt.id
        assert "time" not in imports(hunt.script), f"{hunt.id}: no clock may decide"


def imports(script: str) -> set[str]:
    """Modules that a script imports, by the first word of their names."""
    names = re.findall(r"^(?:from|import) (\w+)", script, re.MULTILINE)
    return set(names)


@pytest.mark.slow
@pytest.mark.parametrize("hunt", SLOW_ENGINES, ids=lambda hunt: hunt.id)
def test_the_work_grows_as_it_should_not(hunt: Hunt, tmp_path: Path) -> None:
    slow = last_figure(hunts.observe(hunt, mapping(hunt, tmp_path, hunt.mistake.text)))
    assert slow >= 1.5 * last_figure(hunts.observe(hunt, {}))


@pytest.mark.slow
@pytest.mark.parametrize(("hunt", "wrong"), WRONG, ids=[f"{h.id} {w.name}" for h, w in WRONG])
def test_a_fix_that_is_faster_and_wrong_is_refused(
    hunt: Hunt, wrong: mistakes.Mutant, tmp_path: Path
) -> None:
    slow = last_figure(hunts.observe(hunt, mapping(hunt, tmp_path, hunt.mistake.text)))
    files = mapping(hunt, tmp_path, wrong.text)
    assert last_figure(hunts.observe(hunt, files)) < slow, "it is no faster"
    tasks = [task.id for task in hunt.phase.of_module(hunt.mistake.module)]
    result = hunts.run_hidden(hunt.phase, files, seed=1, tasks=tasks, stop=True)
    assert any(not test.passed for test in result.tests)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hunt",
    {(hunt.phase.slug, hunt.mistake.module): hunt for hunt in HUNTS}.values(),
    ids=lambda hunt: f"{hunt.id} {hunt.mistake.module}",
)
def test_a_mended_module_solves_its_hunts(hunt: Hunt, tmp_path: Path) -> None:
    """One hunt of each module: what is judged is the module, whichever mistake it had."""
    right = hunt.phase.reference_file(hunt.mistake.module).read_text(encoding="utf-8")
    tasks = [task.id for task in hunt.phase.of_module(hunt.mistake.module)]
    result = hunts.run_hidden(hunt.phase, mapping(hunt, tmp_path, right), seed=1, tasks=tasks)
    assert result.tests and not result.broken
    assert [test.name for test in result.tests if not test.passed] == []


@pytest.mark.slow
@pytest.mark.parametrize("hunt", HUNTS, ids=lambda hunt: hunt.id)
def test_the_unchanged_module_does_not_pass(hunt: Hunt, tmp_path: Path) -> None:
    result = hunts.run_hidden(
        hunt.phase,
        mapping(hunt, tmp_path, hunt.mistake.text),
        seed=1,
        tasks=[hunt.mistake.exercise],
        stop=True,
    )
    assert any(not test.passed for test in result.tests)


@pytest.fixture
def hunt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hunt:
    """Hunt 07.1 in a home of its own."""
    found = hunts.find(Course(ROOT), "07.1")
    monkeypatch.setattr(Hunt, "folder", property(lambda self: tmp_path / "hunts" / self.id))
    monkeypatch.setattr(Hunt, "shown", lambda self, path: str(path))
    monkeypatch.setattr(hunts, "backup", lambda root, files: None)
    monkeypatch.setattr(copies, "State", lambda root: State(tmp_path))
    return found


def run(*words: str, **options: object) -> int:
    """The exit code of the command."""
    given = dict.fromkeys(("clue", "again", "tell", "run", "profile"), False) | {
        "name": "",
        "yes": True,
    }
    given |= options
    try:
        hunt_command.main(*words, **given)
    except typer.Exit as end:
        return end.exit_code
    return 0


def test_a_hunt_from_its_report_to_its_story(
    hunt: Hunt, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("07.1") == 0  # begins
    report = (hunt.folder / "REPORT.md").read_text(encoding="utf-8")
    assert "33 users: a graph of  64 rows" in report and "make hunt-07.1" in report
    begun = hunt.file.read_text(encoding="utf-8")
    capfd.readouterr()

    hunt.file.write_text(begun + "\nprint('the copy is loaded')\n", encoding="utf-8")
    mine = f"import {hunt.mistake.module}; print('and my own script')"
    (hunt.folder / "reproduce.py").write_text(mine, encoding="utf-8")
    assert run("07.1", run=True) == 0
    assert "the copy is loaded\nand my own script" in capfd.readouterr().out
    hunt.file.write_text(begun, encoding="utf-8")

    assert run("07.1") == 1  # nothing was mended
    shown = capfd.readouterr().out
    assert "✗ the user still sees" in shown and "next: edit" in shown

    assert run("07.1", clue=True) == 0
    assert "1 of 3, where to look" in capfd.readouterr().out
    assert run("07.1", name="choose_bucket") == 1
    assert run("07.1", name="make_buckets") == 0

    monkeypatch.setattr(hunts, "run_hidden", fake_hidden(hunt.phase))
    hunt.file.write_text(hunt.phase.reference_file(hunt.mistake.module).read_text())
    assert run("07.1") == 0
    shown = capfd.readouterr().out
    assert "✓ the script prints what it should" in shown
    assert "It was make_buckets, task 07.1" in shown and "next: make hunt-07.2" in shown
    assert run("07.1", name="make_buckets") == 0
    assert "Mend it" not in capfd.readouterr().out

    assert run("07.1", again=True) == 0
    assert hunt.file.read_text(encoding="utf-8") == begun


@pytest.mark.parametrize(
    "slow",
    [
        pytest.param(hunt, marks=() if hunt.id == "02.4" else pytest.mark.slow, id=hunt.id)
        for hunt in SLOW_ENGINES
        if hunt.is_seen_in_a_profile
    ],
)
def test_a_profile_names_the_function_that_is_slow(
    slow: Hunt, hunt: Hunt, capfd: pytest.CaptureFixture[str]
) -> None:
    write_text(slow.file, hunts.buggy_text(slow))
    write_text(slow.folder / "reproduce.py", slow.script + "\n")
    assert run(slow.id, profile=True) == 0
    page = (slow.folder / "profile.html").read_text(encoding="utf-8")
    assert slow.title in page and "labkit/inside/cost.py" not in page
    frame = rf'title="[^"]*{re.escape(slow.mistake.function)}[^"]* ms, ([\d.]+)%"'
    assert max(map(float, re.findall(frame, page))) > 25, capfd.readouterr().out


def test_a_hunt_that_takes_no_time_does_not_send_to_the_profile() -> None:
    unseen = {hunt.id for hunt in SLOW_ENGINES if not hunt.is_seen_in_a_profile}
    assert unseen == {"05.4", "14.4"}
    for hunt in SLOW_ENGINES:
        assert ("--profile" in hunts.report(hunt, "", "", False)) == hunt.is_seen_in_a_profile


def test_after_the_last_hunt_of_a_phase_there_is_no_next_one(
    hunt: Hunt, capsys: pytest.CaptureFixture[str]
) -> None:
    for one in hunts.load(hunt.phase):
        hunt_command.put(one, solved=copies.now())
    assert run("07") == 0
    shown = capsys.readouterr().out
    assert "all hunts of this phase are solved" in shown and "next:" not in shown


def test_a_refused_mend_names_the_tests_and_not_only_the_symptom(
    hunt: Hunt, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = public.Test("x", "test_07_1_x", "As much work for 2000 as for 10.", "07.1", "failed")
    hunt_command.put(hunt, own=True)
    hunt_command.show_failed(Screen(), hunt, public.PhaseResult(hunt.phase, [failed]), [failed])
    shown = " ".join(capsys.readouterr().out.split())
    assert "As much work for 2000 as for 10." in shown and "more work than it needs" in shown
    assert "make grade-07" in shown


def test_a_copy_that_solves_open_tasks_is_not_opened_unasked(
    hunt: Hunt, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("07.1", yes=False) == 1
    assert not hunt.file.exists()
    shown = capsys.readouterr().out
    assert "holds the solution of 07.1, 07.2, 07.3: not green yet" in shown
    assert 'make hunt-07.1 ARGS="--yes" opens it' in shown


def fake_hidden(phase: Phase):  # type: ignore[no-untyped-def]
    """The hidden suite takes seconds; test_the_unchanged_module_does_not_pass runs it."""

    def run_hidden(*args: object, **kwargs: object) -> public.PhaseResult:
        test = public.Test("x", "test_07_1_x", "x", "07.1", "passed")
        return public.PhaseResult(phase, [test])

    return run_hidden


def test_an_unknown_hunt_is_named() -> None:
    with pytest.raises(ManifestError, match=r"there is no hunt '02\.9'; those of phase 02: 02\.1"):
        hunts.find(Course(ROOT), "02.9")


def test_a_name_that_is_no_function_is_told_from_a_wrong_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hunt = HUNTS[0]
    assert not hunt_command.check_name(Screen(), hunt, "banana")
    assert "has no function banana" in capsys.readouterr().out
    assert not hunt_command.check_name(Screen(), hunt, "free")
    assert "in another function" in capsys.readouterr().out
