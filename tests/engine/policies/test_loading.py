"""Naming a scheduler: in Python, on the command line, in a replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labkit.trace.cli import app
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.entrypoints.cli import main
from mini_vllm.policies import POLICIES, load_scheduler

OWN = """
from dataclasses import dataclass

from mini_vllm.core.scheduler import Scheduler


@dataclass
class Note:
    text: str


class OneAtATime(Scheduler):
    def _try_admit(self, step, request):
        return not self.running and super()._try_admit(step, request)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_names_and_files_give_schedulers(own: Path) -> None:
    assert next(iter(POLICIES)) == "static" and POLICIES["vllm-v1"] is Scheduler
    assert all(load_scheduler(name) is cls for name, cls in POLICIES.items())
    found = load_scheduler(f"{own}:OneAtATime")
    assert issubclass(found, Scheduler) and found.__name__ == "OneAtATime"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nano-vlm", "no scheduler 'nano-vlm'; did you mean 'nano-vllm'?"),
        ("", "known are static, minivllm"),
        ("gone.py:Mine", "there is no Python file gone.py"),
        ("OWN:OneAtTime", "has no class 'OneAtTime'; did you mean 'OneAtATime'?"),
        ("OWN:Note", "Note of OWN is no scheduler; make it a subclass"),
        ("OWN:", "has no class ''; did you mean"),
        ("BROKEN:Mine", "BROKEN cannot be imported: SyntaxError"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest(
    own: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = own.with_name("broken.py")
    broken.write_text("def f(:\n")
    name, message = (
        text.replace("OWN", str(own)).replace("BROKEN", str(broken)) for text in (name, message)
    )
    with pytest.raises(ValueError) as error:
        load_scheduler(name)
    assert message in str(error.value)
    assert main(["generate", "x", "--scheduler", name]) == 2
    assert message in capsys.readouterr().err


def test_the_command_line_runs_the_named_scheduler(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One's own serves one prompt after the other, the others both side by side."""
    batches = {}
    for name in ("static", f"{own}:OneAtATime", "vllm-v1"):
        timeline = tmp_path / "steps.jsonl"
        words = ["generate", "The sun", "A cat", "--max-tokens", "4", "--ignore-eos"]
        limits = ["--num-gpu-blocks", "9", "--max-model-len", "128", "--block-size", "16"]
        words += ["--temperature", "0", "--timeline", str(timeline), "--scheduler", name]
        assert main([*words, *limits]) == 0
        steps = [json.loads(line) for line in timeline.read_text().splitlines()]
        batches[name] = [len(step["scheduled"]) for step in steps]
    printed = capsys.readouterr().out
    assert printed.count("--- 'The sun'") == 3
    assert batches["vllm-v1"] == [2] * 4
    assert batches[f"{own}:OneAtATime"] == [1] * 8
    assert batches["static"] == [2] * 4


def test_a_trace_replays_on_every_policy(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    adds = [{"op": "add", "id": f"r{i}", "prompt": {"len": 20}, "max_tokens": 9} for i in range(4)]
    config = {"max_num_batched_tokens": 64, "num_gpu_blocks": 8, "block_size": 8}
    trace.write_text(json.dumps({"config": config, "events": [*adds, {"op": "drain"}]}))
    lines = {}
    for name in POLICIES:
        result = CliRunner().invoke(app, ["run", str(trace), "--scheduler", name])
        assert result.exit_code == 0, result.output
        lines[name] = [json.loads(line) for line in result.output.splitlines()]
        finished = sorted(entry[0] for line in lines[name] for entry in line["finished"])
        assert finished == ["r0", "r1", "r2", "r3"]
    assert lines["vllm-v1"] == [
        json.loads(line)
        for line in CliRunner().invoke(app, ["run", str(trace)]).output.splitlines()
    ]
    assert lines["static"] != lines["minivllm"] != lines["vllm-v1"]
