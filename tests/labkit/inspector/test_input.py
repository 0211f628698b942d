"""What can be given to the inspector, and what it says of what it cannot use."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from labkit.course.root import ROOT
from labkit.inspector.recording import RecordingError
from labkit.inspector.sources import Replay, load

GOLDEN = ROOT / "tests" / "conformance" / "golden" / "pressure.jsonl.xz"
DIFFERENCE = ROOT / "tests" / "conformance" / "differences" / "unwritten-blocks.json"


def refusal(path: Path, **words: Any) -> str:
    with pytest.raises(RecordingError) as caught:
        load(path, **words)
    return str(caught.value)


def rewrite(path: Path, number: int, change: dict[str, Any], drop: str | None = None) -> Path:
    """Change one line of a recording."""
    lines = path.read_text().splitlines()
    line = json.loads(lines[number - 1]) | change
    lines[number - 1] = json.dumps({k: v for k, v in line.items() if k != drop})
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_recording_is_read(recording: Path, lines: list[dict[str, Any]]) -> None:
    (run,) = load(recording)
    assert (run.name, run.lines, run.config, run.error) == ("small.jsonl", lines, {}, None)


def test_a_recording_of_one_step_is_a_recording(recording: Path) -> None:
    recording.write_text(recording.read_text().splitlines()[0] + "\n")
    assert len(load(recording)[0].lines) == 1


def test_config_names_the_trace_of_a_recording(recording: Path, trace_file: Path) -> None:
    (run,) = load(recording, described_by=trace_file)
    assert run.config["block_size"] == 2
    assert run.prompt_tokens == {"a": 4, "b": 5, "c": 1}


def test_a_recording_that_describes_itself_is_believed(recording: Path, trace_file: Path) -> None:
    rewrite(recording, 1, {"config": {"block_size": 2}, "added": {"a": 4, "b": 5}})
    rewrite(recording, 2, {"added": {"c": 1}})
    (run,) = load(recording, described_by=trace_file)
    assert run.config == {"block_size": 2}
    assert run.prompt_tokens == {"a": 4, "b": 5, "c": 1}


def test_a_trace_is_replayed(trace_file: Path, lines: list[dict[str, Any]]) -> None:
    (run,) = load(trace_file)
    assert (run.name, run.lines) == ("reference", lines)


def test_against_a_recording_of_the_trace(trace_file: Path, recording: Path) -> None:
    ours, recorded = load(trace_file, against=str(recording))
    assert ours.lines == recorded.lines
    assert recorded.config == ours.config
    assert recorded.notes == ("Limits and prompt lengths are those of the trace beside it.",)


def test_golden_files_hold_vllms_steps(lines: list[dict[str, Any]]) -> None:
    vllm, ours = load(GOLDEN, against="reference", seed=3)
    assert vllm.name == "vLLM, golden pressure-3"
    assert vllm.lines == ours.lines
    assert refusal(GOLDEN, seed=99).endswith("no seed 99; it has " + ", ".join(map(str, range(16))))


def test_a_recorded_difference_has_two_sides() -> None:
    ours, theirs = load(DIFFERENCE)
    assert (ours.name, theirs.name) == ("mini_vllm", "vLLM, recorded")
    assert ours.lines != theirs.lines


STUCK = """
from mini_vllm.core.scheduler import Scheduler


class Stuck(Scheduler):
    def schedule(self):
        if len(self.requests) == 2:
            raise RuntimeError("out of ideas")
        return super().schedule()
"""


def test_what_a_replay_did_before_it_raised_is_kept(trace_file: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(STUCK)
    (run,) = load(trace_file, replay=Replay(scheduler=f"{mine}:Stuck"))
    assert len(run.lines) == 3, "c is aborted after three steps"
    assert run.error == "the scheduler raised RuntimeError: out of ideas"


def test_a_replay_that_fails_at_once_is_an_error(trace_file: Path, tmp_path: Path) -> None:
    said = refusal(trace_file, replay=Replay(scheduler=f"{tmp_path}/none.py:Mine"))
    assert f"{tmp_path}/none.py" in said


# ------------------------------------------------------------------ refusals


def test_a_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.jsonl").startswith(f"{tmp_path}/no.jsonl: there is no such file")
    assert refusal(tmp_path / "no.jsonl.xz").endswith("there is no such file")


def test_a_folder_and_a_binary_file(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path)
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refusal(tmp_path / "noise")
    (tmp_path / "noise.xz").write_bytes(b"noise")
    assert "no file of golden traces" in refusal(tmp_path / "noise.xz")
    (tmp_path / "odd.xz").write_bytes(lzma.compress(b'[1, 2]\n{"a": 1}\n'))
    assert "no file of golden traces" in refusal(tmp_path / "odd.xz")


def test_text_that_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n")
    said = refusal(path)
    assert said.startswith(f"{path}, line 1, column 1: this is not JSON: Expecting value; docs/")
    path.write_text('"dear diary"\n')
    assert refusal(path).endswith("this is neither a trace nor a recording of steps")


def test_an_empty_file_has_no_step(tmp_path: Path) -> None:
    for text in ("", "\n\n"):
        (tmp_path / "empty.jsonl").write_text(text)
        assert "there is no step in it" in refusal(tmp_path / "empty.jsonl")


def test_a_trace_without_steps(tmp_path: Path) -> None:
    (tmp_path / "still.json").write_text('{"config": {}, "events": []}')
    assert "has no step" in refusal(tmp_path / "still.json")


def test_a_wrong_trace(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text('{"events": [{"op": "ad"}]}')
    assert "did you mean 'add'?" in refusal(path)


def test_a_line_that_is_cut_off(recording: Path) -> None:
    recording.write_text(recording.read_text()[:-20])
    assert refusal(recording).startswith(f"{recording}, line 6: the line is cut off")


def test_a_broken_line_in_the_middle(recording: Path) -> None:
    broken = recording.read_text().splitlines()
    broken[2] = broken[2].replace(":", "", 1)
    recording.write_text("\n".join(broken) + "\n")
    said = refusal(recording)
    assert said.startswith(f"{recording}, line 3, column ") and "not JSON" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scheduled": [1]}, "scheduled is [1]; it must be an object {id: tokens}"),
        ({"scheduled": {"a": -1}}, 'scheduled is {"a": -1}; it must be an object {id: tokens}'),
        ({"running": "a"}, 'running is "a"; it must be a list of ids'),
        ({"finished": [["a"]]}, 'finished is [["a"]]; it must be a list of [id, status, reason]'),
        ({"new_block_ids": {"a": 1}}, "it must be an object {id: [blocks]}"),
        ({"free_blocks": True}, "free_blocks is true; it must be a whole number"),
        ({"step": 7}, "step is 7; it must be 1: a recording begins with step 0"),
        ({"added": [1]}, "added is [1]; it must be an object"),
        ({"spec": {"a": 1}}, 'spec is {"a": 1}; it must be an object {id: [token ids]}'),
        ({"sampled": []}, "sampled is []; it must be an object {id: [token ids]}"),
    ],
)
def test_a_wrong_value_names_line_key_and_what_is_right(
    recording: Path, change: dict[str, Any], said: str
) -> None:
    message = refusal(rewrite(recording, 2, change))
    assert message.startswith(f"{recording}, line 2: ") and said in message


def test_a_missing_key_names_a_near_one(recording: Path) -> None:
    rewrite(recording, 4, {"free_block": 1}, drop="free_blocks")
    said = "`free_blocks` is missing; is 'free_block' meant to be it?"
    assert refusal(recording) == f"{recording}, line 4: {said}"


def test_against_needs_a_file_or_a_trace(recording: Path, trace_file: Path) -> None:
    assert "holds no trace that could be replayed" in refusal(recording, against="vllm-v1")
    assert "there is no such file" in refusal(recording, against="other.jsonl")
    said = refusal(recording, described_by=recording)
    assert "this is a recording; --config names a trace" in said
