"""Measuring the suites: changes by rule, other solutions put together, and a strict verdict."""

from __future__ import annotations

import ast
import json
import textwrap
from pathlib import Path

import pytest

from labkit.course import blocks, source
from labkit.course.manifest import Course, ManifestError, Phase
from labkit.course.root import find_root
from labkit.judge import mistakes, public
from labkit.judge.public import PhaseResult
from labkit.process import warm
from labkit.quality import alternatives, mutate
from labkit.quality import survey as quality
from labkit.quality.survey import Line
from tests.labkit.toy_course import make_course

COURSE = Course(find_root())
SCHOOL = '''
def grade(points, limit=10):
    """Points as a mark; limit=10 is full."""
    if points < 0 or points > limit:
        raise ValueError(f"{points} is not below {limit + 1}")
    total = min(points, limit)
    for bonus in range(2):
        total += bonus
        if not bonus:
            continue
    return sorted([total], reverse=True)[0:1]
'''


# ---------------------------------------------------------------- changes made by rule
def names(text: str, function: str) -> set[str]:
    found = list(mutate.of_function(text, "m", function, "00.1"))
    assert len({mutation.name for mutation in found}) == len(found)
    for mutation in found:
        ast.parse(mutation.text)
        assert ast.dump(ast.parse(mutation.text)) != ast.dump(ast.parse(text)), mutation.name
    return {mutation.name.removeprefix(f"{function}: ") for mutation in found}


@pytest.mark.parametrize(
    "change",
    [
        "`points < 0` -> `points <= 0`",
        "`points > limit` -> `points <= limit`",
        "`points < 0 or points > limit` -> `points < 0 and points > limit`",
        "`points < 0 or points > limit` -> `points > limit`",
        "`0` -> `1`",
        "`min(points, limit)` -> `max(points, limit)`",
        "`total += bonus` -> `total -= bonus`",
        "`total += bonus` -> `pass`",
        "`not bonus` -> `bonus`",
        "`continue` -> `break`",
        "`sorted([total], reverse=True)` -> `sorted([total])`",
        "`True` -> `False`",
        "`2` -> `3`",
        "`2` -> `1`",
        "`return sorted([total], reverse=True)[0:1]` -> `return None`",
    ],
)
def test_typical_slips_are_made(change: str) -> None:
    assert change in names(SCHOOL, "grade")


def test_texts_for_humans_are_left_alone() -> None:
    changes = names(SCHOOL, "grade")
    assert not any("limit + 1" in change and "limit - 1" in change for change in changes)
    assert not any(change.startswith("`10`") for change in changes)  # signature and docstring


def test_every_graded_function_of_the_course_can_be_changed() -> None:
    for phase in COURSE.ready:
        made = mutate.mutations(phase)
        holes = {name for module in phase.modules for name in phase.holes(module)}
        simple = {"FCFSRequestQueue.add_request"}
        assert len({mutation.function for mutation in made}) >= 0.7 * len(holes - simple)
        assert len({(mutation.module, mutation.name) for mutation in made}) == len(made)


@pytest.mark.parametrize("where", ["", "true"], ids=["a desk", "CI"])
@pytest.mark.slow
def test_questions_that_never_change_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The toy asks the same under every seed; with a drawn question one task does not. Where `CI`
    is set, Hypothesis would ignore the seed by itself."""
    monkeypatch.setenv("CI", where) if where else monkeypatch.delenv("CI", raising=False)
    toy = make_course(tmp_path).phase("00")
    line = quality.row_of_fresh_inputs(toy, 1)
    assert (line.good, line.total, line.wrong) == (0, 2, ["00.1", "00.2"])
    path = toy.hidden_tests / "test_toy_hidden.py"
    path.write_text(
        path.read_text()
        + textwrap.dedent(
            """
            from hypothesis import given, strategies


            @given(wanted=strategies.integers())
            def test_00_1_drawn(subject, reference, wanted):
                program = Program()
                program.see(program.call("toy.fifo:clamp", wanted, 3, 4))
                assert subject.run(program) == reference.run(program)
            """
        )
    )
    assert quality.row_of_fresh_inputs(toy, 1).wrong == ["00.2"]


def test_a_suite_that_was_cut_off_says_nothing_about_its_questions(tmp_path: Path) -> None:
    toy = make_course(tmp_path).phase("00")
    path = toy.hidden_tests / "test_toy_hidden.py"
    path.write_text(path.read_text() + "\n\ndef test_00_2_fails():\n    assert 1 == 2\n")
    with pytest.raises(RuntimeError, match="does not pass the hidden suite: test_00_2_fails"):
        quality.questions(toy, 1)


CONSTANT: dict[str, str] = {}
"""Tasks that can only be asked the same in every grade, each with its reason: none so far."""
DRAWN = {"seed", "judge", "draw", "ratio", "races"}
"""Fixtures whose values follow from the grade's seed."""


def drawn_tests(phase: Phase) -> set[str]:
    """Tasks with a hidden test that Hypothesis feeds, or a fixture that draws."""
    tasks = set()
    for path in sorted(phase.hidden_tests.glob("test_*.py")):
        for test in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(test, ast.FunctionDef) and public.task_of(test.name):
                given = any(ast.unparse(d).startswith("given(") for d in test.decorator_list)
                if given or DRAWN & {argument.arg for argument in test.args.args}:
                    tasks.add(public.task_of(test.name))
    return tasks


@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_every_task_is_asked_something_drawn(phase: Phase) -> None:
    """Answers that were written down in one grade must not pass the next."""
    constant = {exercise.id for exercise in phase.exercises} - drawn_tests(phase)
    assert constant == {task for task in CONSTANT if task.startswith(phase.number)}


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_every_seed_asks_something_new(phase: Phase) -> None:
    """What is drawn reaches the questions; kernels' cases are held in tests/labkit/kernels."""
    with warm.children():
        line = quality.row_of_fresh_inputs(phase, 1)
    assert line.total >= 2, "hardly a task was asked at all"  # phase 04 has two without a kernel
    assert set(line.wrong) <= set(CONSTANT), line.wrong


def test_a_sample_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    items = list(range(100))
    assert quality.sample(items, 10, 1) == quality.sample(items, 10, 1)
    assert quality.sample(items, 10, 1) != quality.sample(items, 10, 2)
    assert quality.sample(items, 0, 1) == items == quality.sample(items, 1000, 1)


# ---------------------------------------------------------------- other solutions
@pytest.mark.parametrize("number", "00 01 02 03 04 05 06 07 08 10 12 14 15 16".split())
def test_three_other_solutions_differ_in_most_functions(number: str) -> None:
    phase = COURSE.phase(number)
    assert len(alternatives.names(phase)) >= 3
    seen: dict[str, set[str]] = {}
    for name in alternatives.names(phase):
        for module, text in alternatives.build(phase, name).items():
            reference = source.functions(phase.reference_file(module).read_text(encoding="utf-8"))
            mine = source.functions(text)
            for hole in phase.holes(module):
                body = "".join(map(ast.dump, mine[hole].statements))
                seen.setdefault(f"{module}:{hole}", set()).add(body)
                seen[f"{module}:{hole}"].add("".join(map(ast.dump, reference[hole].statements)))
    different = sum(len(bodies) >= 4 for bodies in seen.values())
    assert different >= 0.8 * len(seen), [hole for hole, b in seen.items() if len(b) < 4]


ALWAYS = ("03", "10")


@pytest.mark.serial
@pytest.mark.parametrize(
    ("phase", "name"),
    [
        pytest.param(
            phase,
            name,
            id=f"{phase.number}{name}",
            marks=[pytest.mark.slow] * (i > 0 or phase.number not in ALWAYS),
        )
        for phase in COURSE.ready
        for i, name in enumerate(alternatives.names(phase))
    ],
)
def test_public_tests_accept_other_solutions(phase: Phase, name: str, tmp_path: Path) -> None:
    """The first of some phases always, all in `make test-full`. Hidden suites: `make
    suite-quality`."""
    mapping = {}
    for module, text in alternatives.build(phase, name).items():
        file = tmp_path / phase.lab_file(module).name
        file.write_text(text, encoding="utf-8")
        mapping[module] = str(file)
    result = public.run_tests(phase, [phase.public_tests], mapping)
    assert quality.accepted(result), [test.name for test in result.tests if not test.passed]


@pytest.fixture
def copy(tmp_path: Path) -> Phase:
    """Phase 00 in a folder of its own, with a solution "z" that lacks `request.py`."""
    phase = COURSE.phase("00")
    for path in (*phase.folder.glob("*.toml"), *map(phase.reference_file, phase.modules)):
        target = tmp_path / path.relative_to(phase.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    other = Course(tmp_path).phase("00")
    (alternatives.folder(other) / "z").mkdir(parents=True)
    for path in (alternatives.folder(phase) / "a").glob("*.py"):
        if path.name != "request.py":
            (alternatives.folder(other) / "z" / path.name).write_bytes(path.read_bytes())
    return other


def write(phase: Phase, text: str) -> None:
    (alternatives.folder(phase) / "z" / "request.py").write_text(text, encoding="utf-8")


def test_a_solution_without_a_graded_function_is_refused(copy: Phase) -> None:
    write(copy, "class Request:\n    def num_tokens(self):\n        return 1\n")
    with pytest.raises(ManifestError, match=r"request\.py: .*num_tokens_with_spec.* missing"):
        alternatives.build(copy, "z")


def test_helpers_come_along_and_new_methods_do_not(copy: Phase) -> None:
    a = (alternatives.folder(COURSE.phase("00")) / "a" / "request.py").read_text(encoding="utf-8")
    write(copy, a + "\n\ndef helper():\n    return 7\n")
    assert alternatives.build(copy, "z")["mini_vllm.request"].endswith("return 7\n")
    write(copy, a + "\n    def method(self):\n        return 7\n")
    with pytest.raises(ManifestError, match=r"has no Request\.method; nest it"):
        alternatives.build(copy, "z")


# ---------------------------------------------------------------- the verdict
@pytest.mark.parametrize(
    ("line", "good"),
    [
        (Line("changes", 19, 20, 200), True),
        (Line("changes", 18, 20, 200), False),
        (Line("changes", 19, 20, 200, wrong=["f: `a` -> `b`"]), False),
        (Line("alternatives", 3, 3, 3), True),
        (Line("alternatives", 2, 3, 3, wrong=["c: test_x"]), False),
        (Line("alternatives", 0, 0, 0), False),
        (Line("seeds", 49, 50, 50, wrong=["seed 3"]), False),
    ],
)
def test_what_is_good_enough(line: Line, good: bool) -> None:
    assert quality.passes(line) is good


def test_a_row_says_if_it_is_a_sample() -> None:
    assert "(a sample of 200)" in str(Line("changes", 19, 20, 200))
    assert "sample" not in str(Line("changes", 200, 200, 200))
    assert "not run" in str(Line("seeds", 0, 0, 0))


def made(*outcomes: str, broken: str = "") -> PhaseResult:
    tests = [public.Test(str(i), f"test_00_1_{i}", "", "00.1", o) for i, o in enumerate(outcomes)]
    return PhaseResult(COURSE.phase("00"), tests, broken=broken)


def test_a_suite_that_does_not_load_catches_nothing() -> None:
    assert quality.caught(made("passed", "failed"))
    assert not quality.caught(made("passed", "not run"))
    with pytest.raises(RuntimeError, match="did not load: no module"):
        quality.caught(made(broken="no module"))
    assert quality.accepted(made("passed", "passed"))
    assert not quality.accepted(made("passed", "not run"))
    assert not quality.accepted(made())


def test_survivors_have_a_reason_and_still_exist() -> None:
    for phase in COURSE.ready:
        known = quality.load_survivors(phase)
        made_by_rule = {mutation.name for mutation in mutate.mutations(phase)}
        assert set(known) <= made_by_rule, set(known) - made_by_rule
        assert all(len(survivor.reason) > 20 for survivor in known.values())


def test_a_wrong_survivor_is_named(copy: Phase) -> None:
    path = quality.survivors_file(copy)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('[[survivors]]\nphase = "00"\nchange = "x"\n', encoding="utf-8")
    with pytest.raises(ManifestError, match=r"survivors\[0\]: keys are change, phase"):
        quality.load_survivors(copy)


def test_only_survivors_are_asked_again(copy: Phase, monkeypatch: pytest.MonkeyPatch) -> None:
    every = quality.changes_of(copy)
    fixed, left, explained = every[3].name, every[5].name, every[7].name
    asked = []

    def noticed(phase: Phase, task: str, module: str, text: str, seed: int) -> bool:
        (name,) = [m.name for m in every if m.text == text]
        asked.append(name)
        return name == fixed

    monkeypatch.setattr(quality, "noticed", noticed)
    with pytest.raises(ValueError, match="there is none"):
        quality.row_of_changes_again(copy, 1, 1)
    line = Line("changes", len(every) - 3, len(every), len(every), [fixed, left, explained])
    quality.record(copy, [line])
    reason = "no input can tell the two apart, says this test"
    entry = {"phase": "00", "change": explained, "equivalent": True, "reason": reason}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    quality.survivors_file(copy).write_text(f"[[survivors]]\n{text}", encoding="utf-8")
    line = quality.row_of_changes_again(copy, 1, 1)
    assert set(asked) == {fixed, left}
    assert (line.good, line.total, line.wrong) == (len(every) - 2, len(every) - 1, [left])
    quality.record(copy, [Line("changes", 0, 1, 1, ["f: `x` -> `y`"])])
    with pytest.raises(ValueError, match="1 of its survivors are not made any more"):
        quality.row_of_changes_again(copy, 1, 1)
    quality.record(copy, [Line("changes", 10, 10, len(every) - 2, [])])
    with pytest.raises(ValueError, match=f"of {len(every) - 2} changes, and there are"):
        quality.row_of_changes_again(copy, 1, 1)


def test_a_mistake_is_judged_by_its_own_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tests of the mistake's own task are run, and a test that was skipped has found
    nothing."""
    phase = COURSE.phase("00")
    outcomes = {"00.1": "passed", "00.2": "skipped"}
    asked = []

    def hidden(phase: Phase, texts: object, seed: int, stop: bool, tasks: list[str]) -> PhaseResult:
        asked.extend(tasks)
        (task,) = tasks
        outcome = outcomes.get(task, "failed")
        return PhaseResult(phase, [public.Test("t", "t", "t", task, outcome)])

    monkeypatch.setattr(quality, "hidden", hidden)
    line = quality.row_of_own_tasks(phase, 0, 1, 1)
    known = mistakes.load(phase)
    assert asked == [mistake.exercise for mistake in known]
    assert line.wrong == [m.name for m in known if m.exercise in outcomes]
    assert line.good == len(known) - len(line.wrong)
    assert quality.row_of_own_tasks(phase, 9, 1, 1).total == 9


def test_an_equivalent_that_leaves_a_sample_makes_room_for_one(
    copy: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = quality.draw(copy, 10, 1)
    assert first != quality.draw(copy, 10, 2)
    assert len(quality.draw(copy, 0, 1)) == len(quality.changes_of(copy))
    equal = first[4].name
    reason = "no input can tell the two apart, says this test"
    entry = {"phase": "00", "change": equal, "equivalent": True, "reason": reason}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    path = quality.survivors_file(copy)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[[survivors]]\n{text}", encoding="utf-8")
    second = quality.draw(copy, 10, 1)
    assert second[:-1] == first[:4] + first[5:]
    quality.record(copy, [Line("changes", 9, 10, 99, [equal])])
    asked = []
    monkeypatch.setattr(quality, "noticed", lambda *args: asked.append(args[3]) or True)
    line = quality.row_of_changes_again(copy, 1, 1)
    assert asked == [second[-1].text]
    assert (line.good, line.total, line.wrong) == (10, 10, [])


@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_the_record_is_of_todays_changes_and_good_enough(phase: Phase) -> None:
    """A changed graded function, or a new named mistake, needs the suite measured again.

    The phases up to 07 were measured whole, with every change, and stay so.
    """
    rows = {name: Line(**row) for name, row in quality.recorded(phase.root)[phase.slug].items()}
    assert sorted(rows) == sorted(quality.PARTS)
    assert all(quality.passes(line) for line in rows.values())
    every = len(quality.not_equivalent(phase))
    whole = phase.number <= "07"
    assert rows["changes"].of == every
    assert rows["changes"].total >= (every if whole else min(quality.SAMPLE, every))
    assert rows["named"].total == len(mistakes.entries(phase))
    assert rows["seeds"].total >= (50 if whole else quality.SEEDS)


@pytest.mark.serial
@pytest.mark.sampled(4)
@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_a_few_changes_are_noticed(phase: Phase) -> None:
    """All of them: `suite-quality --only changes --sample 0`."""
    with warm.children():
        line = quality.row_of_changes(phase, 1, 1, 1)
    assert line.good == line.total == 1, line.wrong


def test_the_handbook_shows_the_record(copy: Phase) -> None:
    page = (COURSE.root / quality.PAGE).read_text(encoding="utf-8")
    assert quality.table(COURSE.root) in page
    (copy.root / "docs").mkdir()
    (copy.root / quality.PAGE).write_text(page, encoding="utf-8")
    quality.record(copy, [Line("seeds", 7, 9, 9)])
    blocks.write(copy.root / quality.PAGE, {"quality": quality.table(copy.root)})
    mine = (copy.root / quality.PAGE).read_text(encoding="utf-8")
    assert mine == page.replace(quality.table(COURSE.root), quality.table(copy.root))
    assert "| 00-orientation | 7 of 9 |" in mine


def test_thoughtless_answers_replace_every_graded_function() -> None:
    phase = COURSE.phase("03")
    texts = quality.baseline(phase, quality.BASELINES["zero"])
    for module, text in texts.items():
        for hole in phase.holes(module):
            (statement,) = source.find(text, hole).statements
            assert ast.unparse(statement) == "return 0"


@pytest.mark.slow
@pytest.mark.serial
def test_the_suite_of_phase_00_is_measured_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    phase = COURSE.phase("00")
    lines = quality.measure(phase, ("changes", "alternatives", "baselines"), 4, 1, 1, 1)
    assert [line.what for line in lines] == ["changes", "alternatives", "baselines"]
    assert all(quality.passes(line) for line in lines), [line.wrong for line in lines]
