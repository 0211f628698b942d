"""`run NN`: the learner's module inside the engine, beside the reference."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.course import source
from labkit.course.borrow import borrow, whose
from labkit.course.console import Screen
from labkit.course.files import write_text
from labkit.course.manifest import Course, Phase
from labkit.course.root import find_root
from labkit.course.skeleton import is_hole, skeleton
from labkit.inside import child
from labkit.learner import ab
from labkit.process import overlay
from labkit.process.worker import Worker

MODULES = ["mini_vllm.core.request_queue", "mini_vllm.core.scheduler"]


def side(tokens: list[list[int]], errors: tuple[str, ...] = (), used: int = 2) -> dict[str, Any]:
    rows = [["tokens/s", "100.0"], ["TTFT, median", "12.5 ms"]]
    names = [f"prompt {i}" for i in range(len(tokens))]
    result = {"tokens": tokens, "names": names, "errors": list(errors)}
    return result | {"rows": rows, "used": MODULES[:used]}


@pytest.fixture
def phase() -> Phase:
    return Course(find_root()).phase("03")


def shown(phase: Phase, yours: dict[str, Any], reference: dict[str, Any]) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out):
        code = ab.show_results(Screen(), phase, yours, reference)
    return code, out.getvalue()


def test_the_same_tokens_pass_with_both_sides_figures(phase: Phase) -> None:
    code, text = shown(phase, side([[1, 2]]), side([[1, 2]]))
    assert code == 0
    assert "✓ the same tokens" in text
    assert (text.count("12.5 ms"), text.count("100.0")) == (2, 2)


def test_columns_are_as_wide_as_what_they_hold(phase: Phase) -> None:
    yours = side([[1]]) | {"rows": [["a scheme with a long name", "4.42  0.00000  100.0%"]]}
    lines = shown(phase, yours, yours)[1].splitlines()
    at = next(i for i, line in enumerate(lines) if "scheme" in line)
    head, row = lines[at - 1], lines[at]
    assert head.index("yours") + len("yours") == row.index("100.0%") + len("100.0%")
    assert row.count("4.42  0.00000  100.0%") == 2 and len(head) == len(row)


def test_which_adapter_was_in_which_slot() -> None:
    held = [["pirate@1", None]] * 3 + [["pirate@1", "a@b@2"]]
    lines = ["steps 1-3: pirate | none", "steps 4-4: pirate | a@b"]
    assert ab.who_sat_where(held) == lines


def test_a_run_without_the_learners_modules_proves_nothing(phase: Phase) -> None:
    code, text = shown(phase, side([[1]], used=0), side([[1]]))
    assert (code, "✓" in text) == (1, False)
    assert "labs/03-scheduler/scheduler.py took no part in this run" in text


def test_the_first_differing_token_is_named(phase: Phase) -> None:
    code, text = shown(phase, side([[1], [4, 5, 6]]), side([[1], [4, 5, 7]]))
    assert code == 1
    assert "prompt 1 differs from output token 2 on" in text
    assert "make trace-diff-03" in text


def test_a_missing_token_differs_where_the_shorter_ends(phase: Phase) -> None:
    assert "differs from output token 1 on" in shown(phase, side([[4]]), side([[4, 5]]))[1]


def test_equal_tokens_with_an_error_do_not_pass(phase: Phase) -> None:
    code, text = shown(phase, side([[1]], ("r1 broke",)), side([[1]]))
    assert (code, "✗ r1 broke" in text) == (1, True)


def test_a_hole_that_ends_a_request_is_named(phase: Phase) -> None:
    message = "TODO 03.2: write f in labs/03-scheduler/scheduler.py (phase 03, a.md#task-2)"
    broken = side([[]], (f"the forward pass failed: AssertionError('{message}')",))
    code, text = shown(phase, broken, side([[4]]))
    assert (code, message in text, "yours" in text) == (1, True, False)
    assert "next: write it, then make lab-03" in text


def test_only_the_engines_workload_has_steps_to_compare() -> None:
    phase = Course(find_root()).phase("04")
    mine = side([[1]]) | {"used": list(phase.modules)}
    text = shown(phase, mine, side([[2]]))[1]
    assert "prompt 0 differs from output token 0 on" in text
    assert ("trace-diff" in text, "make lab-04 judges it" in text) == (False, True)


def test_a_module_that_raises_leads_back_to_the_lab(
    phase: Phase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "mini_vllm.core.scheduler"
    text = phase.reference_file(module).read_text(encoding="utf-8")
    file = tmp_path / "scheduler.py"
    body = "raise ValueError('not yet')"
    file.write_text(source.replace_body(text, "Scheduler._clamp_new_tokens", body), "utf-8")
    monkeypatch.setattr(overlay, "mapping_for", lambda phases: {module: str(file)})
    out = io.StringIO()
    with redirect_stdout(out):
        assert ab.compare(phase) == 1
    assert "✗ The run did not finish." in out.getvalue()
    assert "not yet" in out.getvalue()
    assert "make lab-03 judges it piece by piece" in out.getvalue()


def test_a_command_runs_with_the_learners_modules_in_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course(find_root())
    file = tmp_path / "request.py"
    text = course.phase("00").reference_file("mini_vllm.request").read_text(encoding="utf-8")
    file.write_text(text + "\nprint('mine')\n", encoding="utf-8")
    mapping = {"mini_vllm.request": str(file)}
    monkeypatch.setattr(overlay, "mapping_for", lambda phases: mapping)
    words = ["-c", "import mini_vllm.request as r; print(r.__file__)"]
    assert ab.run_command(course, [course.phase("00")], words) == 0
    assert capfd.readouterr().out.split() == ["mine", str(file)]
    assert ab.run_command(course, [course.phase("00")], ["-c", "raise SystemExit(7)"]) == 7


@pytest.mark.parametrize("phase", Course(find_root()).ready, ids=lambda phase: phase.number)
def test_a_fresh_lab_runs_with_the_references_functions(phase: Phase, tmp_path: Path) -> None:
    """`run NN` runs at every stage: function by function, what is open is borrowed."""
    lab = replace(phase, root=tmp_path)
    for module in phase.modules:
        write_text(lab.lab_file(module), skeleton(phase, module))
        write_text(lab.reference_file(module), phase.reference_file(module).read_text("utf-8"))
    mapping, names = borrow(lab, {module: str(lab.lab_file(module)) for module in lab.modules})
    assert sorted(names) == sorted(name for task in phase.exercises for name in task.functions)
    assert whose(lab, names).startswith(f"yours: no whole task of phase {phase.number} yet\n")
    for module in phase.modules:
        assert not left_open(Path(mapping[module]))


def left_open(file: Path) -> list[str]:
    functions = source.functions(file.read_text(encoding="utf-8"))
    return [name for name, function in functions.items() if is_hole(function)]


def test_which_parts_are_the_learners() -> None:
    """A task counts as the learner's when none of its functions is borrowed."""
    phase = Course(find_root()).phase("15")
    first, *rest = phase.exercises
    borrowed = [name for task in rest for name in task.functions][1:]
    lines = whose(phase, borrowed).splitlines()
    assert lines[0] == f"yours: {first.id}" + (
        f", {rest[0].id}" if len(rest[0].functions) == 1 else ""
    )
    assert lines[1].startswith("the reference's, not written yet: ")
    assert whose(phase, []) == "yours: all of phase 15"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("+ head // GROUP", "+ head // GROUP"), ("distance >= 0", "distance > 0")],
    ids=["right", "wrong"],
)
def test_the_kernels_workload_speaks_through_oracle_and_kernels(
    right: str, wrong: str, tmp_path: Path
) -> None:
    """Two prompts through the oracle, the same two through the kernels of the learner's file."""
    pytest.importorskip("triton", reason="Triton exists on Linux only")
    phase = Course(find_root()).phase("04")
    assert phase.run == "kernels"
    oracle, kernels = phase.modules
    text = phase.reference_file(kernels).read_text(encoding="utf-8")
    assert text.count(right) == 1
    file = tmp_path / "triton_paged.py"
    file.write_text(text.replace(right, wrong), encoding="utf-8")
    limits = child.Limits(ab.RUN_SECONDS, 0)
    with Worker(phase.root, {kernels: str(file)}, limits, "yours") as worker:
        result = worker.call(
            "labkit.learner.ab:measure", workload=phase.run, modules=list(phase.modules)
        )
    assert result["used"] == [oracle, kernels]
    assert [len(tokens) for tokens in result["tokens"]] == [ab.KERNEL_TOKENS] * 4
    through_oracle, through_kernels = result["tokens"][:2], result["tokens"][2:]
    assert (through_oracle == through_kernels) == (right == wrong)
