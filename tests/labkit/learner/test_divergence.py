"""The first difference between a learner's scheduler and the reference, and the A/B run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.course import source
from labkit.course.console import Screen
from labkit.course.manifest import Course, Phase
from labkit.course.root import find_root
from labkit.course.skeleton import skeleton
from labkit.inside import child
from labkit.learner import ab, divergence
from labkit.process.worker import Worker
from labkit.trace.generate import generate

SCHEDULER = "mini_vllm.core.scheduler"
CLAMP = "Scheduler._clamp_new_tokens"
LIMITS = child.Limits(seconds=60)


@pytest.fixture(scope="module")
def phase() -> Phase:
    return Course(find_root()).phase("03")


@pytest.fixture(scope="module")
def reference(phase: Phase) -> Iterator[Worker]:
    with Worker(phase.root, {}, LIMITS, "reference") as worker:
        yield worker


def with_clamp(phase: Phase, folder: Path, body: str) -> dict[str, str]:
    """An overlay whose scheduler clamps as `body` says."""
    text = phase.reference_file(SCHEDULER).read_text(encoding="utf-8")
    file = folder / "labs" / phase.slug / "scheduler.py"
    file.parent.mkdir(parents=True)
    file.write_text(source.replace_body(text, CLAMP, body), encoding="utf-8")
    return {SCHEDULER: str(file)}


def part(phase: Phase, folder: Path, body: str, reference: Worker) -> divergence.Parting | None:
    trace = {
        "config": {"max_num_batched_tokens": 8, "block_size": 4, "num_gpu_blocks": 20},
        "events": [
            {"op": "add", "id": "r0", "prompt": {"len": 30}, "max_tokens": 4},
            {"op": "add", "id": "r1", "prompt": {"len": 5}, "max_tokens": 4},
            {"op": "drain"},
        ],
    }
    with Worker(phase.root, with_clamp(phase, folder, body), LIMITS, "yours") as yours:
        return divergence.compare(yours, reference, trace)


FORGETFUL = """
threshold = self.scheduler_config.long_prefill_token_threshold
if 0 < threshold < num_new_tokens:
    num_new_tokens = threshold
return min(num_new_tokens, self.max_model_len - 1 - num_computed_tokens)
"""


def shown(parting: divergence.Parting) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        divergence.show_parting(Screen(), "mixed", parting)
    return out.getvalue()


def test_the_reference_never_parts_from_itself(phase: Phase, reference: Worker) -> None:
    with Worker(phase.root, {}, LIMITS, "other") as other:
        for profile in ("mixed", "pressure", "priority"):
            assert divergence.compare(other, reference, generate(profile, 2).to_dict()) is None


def test_a_forgotten_budget_is_found_with_the_state_before_it(
    phase: Phase, reference: Worker, tmp_path: Path
) -> None:
    parting = part(phase, tmp_path, FORGETFUL, reference)
    assert parting is not None
    assert "scheduled" in parting.fields
    budget = parting.before["budget"]
    assert sum(parting.yours["scheduled"].values()) > budget
    assert sum(parting.expected["scheduled"].values()) <= budget
    text = shown(parting)
    for words in ("before the step, both agree", f"{budget} tokens a step", "next out:", "waiting"):
        assert words in text, text
    assert text.index("yours") < text.index("expected")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError(token_budget)", ["KeyError", "in Scheduler._clamp_new_tokens"]),
        ("while True: pass", ["hang", "_clamp_new_tokens"]),
        ("import os; os._exit(3)", ["died", "exit code 3"]),
    ],
)
def test_code_that_raises_hangs_or_leaves_is_a_difference_too(
    phase: Phase,
    reference: Worker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    words: list[str],
) -> None:
    if "hang" in words:
        monkeypatch.setattr(f"{__name__}.LIMITS", child.Limits(seconds=10))
    monkeypatch.setattr(divergence, "find_root", lambda: tmp_path)  # places are those of labs/
    parting = part(phase, tmp_path, body, reference)
    assert parting is not None
    assert parting.fields == ("error",)
    for word in words:
        assert word.rpartition(".")[2] in parting.yours["error"], parting.yours["error"]


def test_trace_diff_exits_red_on_a_skeleton_and_green_on_the_reference(
    phase: Phase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "scheduler.py"
    file.write_text(skeleton(phase, SCHEDULER), encoding="utf-8")
    monkeypatch.setattr("labkit.process.overlay.mapping_for", lambda phases: {SCHEDULER: str(file)})
    assert divergence.show(phase, []) == 1
    text = capsys.readouterr().out
    assert "not written yet" in text
    assert "TODO 03." in text
    monkeypatch.setattr("labkit.process.overlay.mapping_for", lambda phases: {})
    monkeypatch.setattr("labkit.learner.divergence.KINDS", ("mixed",))
    assert divergence.show(phase, []) == 0
    assert "✓ mixed, seed 1: the same, step by step" in capsys.readouterr().out


def side(tokens: list[list[int]], used: list[str], error: str = "") -> dict[str, Any]:
    return {
        "names": ["prompt 0"],
        "tokens": tokens,
        "errors": [error] * bool(error),
        "rows": [["steps", "3"]],
        "used": used,
    }


def results(phase: Phase, yours: dict[str, Any]) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out):
        code = ab.show_results(Screen(), phase, yours, side([[1, 2, 3]], list(phase.modules)))
    return code, out.getvalue()


def test_the_run_is_green_only_for_the_same_tokens_of_the_learners_own_modules(
    phase: Phase,
) -> None:
    phase = replace(phase, modules=(SCHEDULER,))
    code, text = results(phase, side([[1, 2, 3]], [SCHEDULER]))
    assert (code, "✓ the same tokens" in text) == (0, True)
    code, text = results(phase, side([[1, 9, 3]], [SCHEDULER]))
    assert (code, "prompt 0 differs from output token 1 on" in text) == (1, True)
    code, text = results(phase, side([[1, 2]], [SCHEDULER]))
    assert (code, "output token 2" in text) == (1, True)
    code, text = results(phase, side([[1, 2, 3]], [SCHEDULER], "no room"))
    assert (code, "✗ no room" in text) == (1, True)
    code, text = results(phase, side([[1, 2, 3]], []))
    assert (code, "✓" in text, "took no part in this run" in text) == (1, False, True)


@pytest.mark.serial
def test_the_whole_engine_runs_both_sides(
    phase: Phase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAB", "reference")
    monkeypatch.setattr(ab, "ROUNDS", 1)
    assert ab.compare(phase) == 0
    text = capsys.readouterr().out
    for words in ("LAB=reference", "tokens/s", "TTFT", "KV waste", "✓ the same tokens"):
        assert words in text
