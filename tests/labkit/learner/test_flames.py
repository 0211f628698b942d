"""`make profile`: stacks are looked at, laid over each other, and drawn on one page."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.learner import flames

HOST = {("step", "schedule", "scan<T>"): 0.6, ("step", "forward"): 0.4}


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def calls_spin() -> None:
    spin(0.2)


@pytest.mark.serial
def test_the_function_that_works_is_seen_below_its_caller() -> None:
    found: Counter[tuple[str, ...]] = Counter()
    with flames.sampled(found):
        calls_spin()
    seconds = sum(
        time for stack, time in found.items() if stack[-1].endswith("test_flames.py:spin")
    )
    assert seconds > 0.5 * sum(found.values()) > 0
    (above,) = {stack[-2] for stack in found if stack[-1].endswith("py:spin")}
    assert above == "tests/labkit/learner/test_flames.py:calls_spin"


@pytest.mark.serial
def test_a_short_run_goes_again_until_enough_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flames, "ENOUGH", 0.2)
    runs: list[None] = []
    found = flames.seen_enough(lambda: (runs.append(None), spin(0.02)))
    assert len(runs) > 5 and sum(found.values()) > 0.1


def event(name: str, seconds: float, parent: object = None, kernels: tuple[object, ...] = ()):  # type: ignore[no-untyped-def]
    return SimpleNamespace(
        name=name, self_cpu_time_total=seconds * 1e6, cpu_parent=parent, kernels=kernels
    )


def test_a_device_of_its_own_is_drawn_by_its_kernels_and_a_cpu_by_its_operations() -> None:
    outer = event("aten::linear", 0.1)
    assert flames.device_stacks([outer, event("aten::mm", 0.3, outer)]) == pytest.approx(
        {("aten::linear",): 0.1, ("aten::linear", "aten::mm"): 0.3}
    )
    kernel = SimpleNamespace(name="gemm", duration=250.0)
    events = [outer, event("aten::mm", 0.3, outer, (kernel, kernel))]
    assert flames.device_stacks(events) == pytest.approx(
        {("aten::linear", "aten::mm", "gemm"): 500e-6}
    )


def test_the_page_needs_nothing_else_and_frames_are_as_wide_as_their_share(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert flames.main([str(out), "--title", "a & b"], lambda _: (HOST, {})) == 0
    text = out.read_text(encoding="utf-8")
    assert "<h1>a &amp; b</h1>" in text and "scan&lt;T&gt;" in text and "nothing was seen" in text
    assert not re.search(r"https?://|<script|src=", text)
    drawn = re.findall(r'width:([\d.]+)%[^>]*title="(\S+)', text)
    assert drawn == [
        ("100.000", "all"),
        ("100.000", "step"),
        ("60.000", "schedule"),
        ("60.000", "scan&lt;T&gt;"),
        ("40.000", "forward"),
    ]
    assert re.search(r"scan&lt;T&gt;</td><td>60\.0%</td><td>60\.0%</td><td>2\.50", text)


@pytest.mark.slow
def test_the_whole_engine_is_seen() -> None:
    host, device = flames.profile_engine(20)
    names = {name for stack in host for name in stack}
    assert "mini_vllm/engine/core.py:EngineCore.step" in names and device
