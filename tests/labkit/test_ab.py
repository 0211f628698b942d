"""`run NN`: the learner's module inside the engine, beside the reference."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from labkit import ab, overlay, source
from labkit.manifest import Course, Phase, find_root
from labkit.screen import Screen

FIGURES = {"output_tokens_per_s": 100.0, "ttft_p50": 0.0125, "tpot_p50": 0.004, "steps": 9.0,
           "preemptions": 1.0, "prefix_hit_rate": 0.25}  # fmt: skip


def side(tokens: list[list[int]], errors: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"tokens": tokens, "errors": list(errors), "figures": FIGURES, "kv_waste": 0.125}


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
    for cell in ("12.5 ms", "4.00 ms", "25.0 %", "12.5%", "100.0"):
        assert text.count(cell) >= 2, text


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


def test_a_module_that_raises_leads_back_to_the_lab(
    phase: Phase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "mini_vllm.core.scheduler"
    text = phase.reference_file(module).read_text(encoding="utf-8")
    file = tmp_path / "scheduler.py"
    body = "raise NotImplementedError('TODO 03.2: write it')"
    file.write_text(source.replace_body(text, "Scheduler._clamp_new_tokens", body), "utf-8")
    monkeypatch.setattr(overlay, "mapping_for", lambda phases: {module: str(file)})
    out = io.StringIO()
    with redirect_stdout(out):
        assert ab.compare(phase) == 1
    assert "✗ yours did not finish" in out.getvalue()
    assert "TODO 03.2" in out.getvalue()
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
