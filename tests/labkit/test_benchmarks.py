"""The benchmarks: an engine that is too slow spoils nobody's round."""

from __future__ import annotations

import sys
import time

import pytest

from benchmarks import bench_offline, bench_serving
from benchmarks.bench_offline import EngineProcess, measure, show


class Turns:
    """Stands in for an engine's process: gives the seconds of its rounds, None = too slow."""

    closed: list[str]
    seconds: dict[str, list[float | None]]

    def __init__(self, engine: str, name: str, python: str, limit: float) -> None:
        self.engine, self.limit = engine, limit
        self.run()  # the warm-up

    def run(self) -> float:
        seconds = self.seconds[self.engine].pop(0)
        if seconds is None:
            raise TimeoutError(f"{self.engine} took longer than {self.limit} s")
        return seconds

    def close(self) -> None:
        self.closed.append(self.engine)


def test_a_slow_engine_leaves_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_offline, "EngineProcess", Turns)
    Turns.closed = []
    Turns.seconds = {
        "mini_vllm": [9.0, 2.0, 1.0, 4.0],
        "hf": [9.0, 8.0, None],
        "vllm": [None],
    }
    figures = measure("tiny16", dict.fromkeys(Turns.seconds, "python"), 3, limit=300)
    assert figures["mini_vllm"] == {
        "best_s": 1.0,
        "tokens_per_s": 1024.0,
        "rounds_s": [2.0, 1.0, 4.0],
    }
    assert figures["hf"] == {
        "best_s": 8.0,
        "tokens_per_s": 128.0,
        "rounds_s": [8.0],
        "stopped_after_s": 300,
    }
    assert figures["vllm"] == {"no_round_in_s": 300}
    assert Turns.closed == ["mini_vllm"] and not any(Turns.seconds.values())
    show("tiny16", figures, {"a": 1000.0, "b": 1000.0})
    ours, hf, vllm, *_ = capsys.readouterr().out.splitlines()
    assert ours.endswith("8.00 x")
    assert hf.endswith("stopped in round 2, after 300 s")
    assert vllm.split() == ["tiny16", "vllm", ">", "300"]


def test_a_process_that_does_not_answer_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warm-up is answered, the round is not."""
    code = "import time; print('BENCH ready', flush=True); time.sleep(600)"
    popen = bench_offline.subprocess.Popen
    monkeypatch.setattr(
        bench_offline.subprocess,
        "Popen",
        lambda words, **options: popen([sys.executable, "-c", code], **options),
    )
    process = EngineProcess("hf", "tiny16", sys.executable, limit=300)
    process.limit = 0.3
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="hf tiny16 took longer than 0 s"):
        process.run()
    assert time.monotonic() - begun < 100


def test_the_serving_benchmark_writes_flags_that_both_servers_read() -> None:
    options = {"max_model_len": 256, "enable_prefix_caching": False, "trust": True}
    assert bench_serving.flags(options) == [
        "--max-model-len", "256", "--no-enable-prefix-caching", "--trust",
    ]  # fmt: skip
