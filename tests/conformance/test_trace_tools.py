"""Generating, comparing and shrinking traces, and the commands that do it."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from labkit.trace import golden
from labkit.trace.cli import app, replay_overlaid
from labkit.trace.coverage import FEATURES, features
from labkit.trace.diff import first_difference, load_lines, render
from labkit.trace.format import Abort, Add, Trace, TraceError, dump_trace, parse_trace
from labkit.trace.generate import deliberate_difference, generate
from labkit.trace.kinds import KINDS
from labkit.trace.runner import load_class, run_reference
from labkit.trace.shrink import shrink
from mini_vllm.core.scheduler import Scheduler

ONE = {"events": [{"op": "add", "id": "r0", "prompt": [1, 2], "max_tokens": 3}, {"op": "drain"}]}

REVERSED = '''
from mini_vllm.core.scheduler import Scheduler

class Reversed(Scheduler):
    """Preempts the oldest request instead of the newest."""

    def _pick_victim(self):
        return self.running[0]
'''


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(ONE))
    return path


def call(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


# ------------------------------------------------------------------ generate


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 100_000))
def test_generated_traces_repeat_and_hold_no_deliberate_difference(kind: str, seed: int) -> None:
    trace = generate(kind, seed, 30)
    assert trace == generate(kind, seed, 30)
    assert deliberate_difference(trace) is None


def test_seeds_and_profiles_make_different_traces() -> None:
    made = [generate(p, s, 30) for p in KINDS for s in range(4)]
    assert len(set(made)) == len(made)


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="no kind 'mix'; it must be one of mixed, pressure"):
        generate("mix", 0)


# ------------------------------------------------------------------ diff


def lines() -> list[dict]:
    return list(run_reference(parse_trace(ONE)))


def test_equal_replays_have_no_difference() -> None:
    assert first_difference(lines(), lines()) is None


def test_the_first_difference_names_step_fields_both_sides_and_the_state_before() -> None:
    other = lines()
    other[1] = other[1] | {"free_blocks": 7, "waiting": ["r9"]}
    other[2] = other[2] | {"free_blocks": 8}
    found = first_difference(lines(), other)
    assert found is not None
    assert (found.step, found.fields) == (1, ("waiting", "free_blocks"))
    text = render(found, "mine", "yours")
    assert "First difference at step 1: waiting, free_blocks" in text
    assert "After step 0, where both agree:" in text
    assert 'yours  ["r9"]' in text and "mine   []" in text


def test_a_replay_that_ends_early_differs() -> None:
    found = first_difference(lines(), lines()[:-1])
    assert found is not None and found.step == 2 and found.right is None
    assert "the replay has ended" in render(found, "a", "b")


def test_the_order_of_scheduling_counts() -> None:
    a = [{"step": 0, "scheduled": {"r0": 1, "r1": 1}}]
    b = [{"step": 0, "scheduled": {"r1": 1, "r0": 1}}]
    found = first_difference(a, b)
    assert found is not None and found.fields == ("scheduled",)


def test_what_a_recording_says_about_itself_is_no_difference() -> None:
    recorded = [line | {"added": {"r0": 4}} for line in lines()]
    recorded[0]["config"] = {"block_size": 4}
    assert first_difference(recorded, lines()) is None
    recorded[1] |= {"mood": "good"}
    found = first_difference(recorded, lines())
    assert found is not None and (found.step, found.fields) == (1, ("mood",))


def test_a_broken_file_of_steps_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"step": 0}\n\n{"step": \n')
    with pytest.raises(TraceError, match=r"steps\.jsonl, line 3: this is not JSON"):
        load_lines(path)


# ------------------------------------------------------------------ shrink


def test_shrinking_keeps_only_what_makes_it_fail() -> None:
    trace = generate("abort", 3, 60)

    def fails(candidate: Trace) -> bool:
        ids = {e.id: e for e in candidate.events if isinstance(e, Add)}
        return any(isinstance(e, Abort) and e.id in ids for e in candidate.events)

    assert fails(trace)
    small = shrink(trace, fails)
    assert [e.op for e in small.events] == ["add", "abort"]
    add = small.events[0]
    assert isinstance(add, Add) and add.max_tokens == 1


def test_shrinking_never_drifts_into_a_deliberate_difference() -> None:
    small = shrink(generate("pressure", 1, 30), lambda t: bool(t.events))
    assert deliberate_difference(small) is None
    assert len(small.events) == 1


# ------------------------------------------------------------------ coverage


def test_features_are_found_where_they_happen() -> None:
    hit = {"op": "add", "prompt": {"len": 8, "share": 8}, "max_tokens": 1}
    trace = parse_trace(
        {
            "config": {"block_size": 4},
            "events": [hit | {"id": "a"}, hit | {"id": "b"}, {"op": "drain"}],
        }
    )
    found = features(trace, list(run_reference(trace)))
    assert {"prefix-hit", "same-step-hit", "full-hit", "max-tokens"} <= found
    assert not found & {"preemption", "chunked", "output-hit", "eos"}


def test_golden_traces_show_every_feature() -> None:
    seen = frozenset().union(*(g.features for g in golden.select()))
    assert set(FEATURES) - seen == set()


# ------------------------------------------------------------------ commands


def test_run_prints_one_json_line_a_step(trace_file: Path) -> None:
    code, output = call("run", trace_file)
    assert code == 0
    assert [json.loads(text) for text in output.splitlines()] == lines()


def test_run_replays_a_class_of_your_own(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(REVERSED)
    found = golden.select("pressure", having=["preemption"], without=["self-victim"])
    trace = tmp_path / "t.json"
    trace.write_text(dump_trace(found[0].trace if found else generate("pressure", 0)))
    mine, theirs = tmp_path / "mine.jsonl", tmp_path / "reference.jsonl"
    mine.write_text(call("run", trace, "--scheduler", f"{own}:Reversed")[1])
    theirs.write_text(call("run", trace)[1])
    code, output = call("diff", mine, theirs)
    assert code == 1 and "First difference at step" in output and "preempted" in output


def test_diff_of_equal_sides_exits_with_0(trace_file: Path) -> None:
    assert call("diff", "reference", "reference", trace_file) == (0, "No difference: 3 steps.\n")


def test_gen_prints_a_trace_that_run_reads(tmp_path: Path) -> None:
    code, output = call("gen", "--kind", "priority", "--seed", 5, "--steps", 20)
    assert code == 0
    assert parse_trace(json.loads(output)) == generate("priority", 5, 20)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "missing.json"], "missing.json: there is no such file"),
        (
            ["diff", "reference", "vllm"],
            "reference replays a trace; name its file: trace diff A B FILE",
        ),
        (["diff", "a.jsonl", "b.jsonl"], "a.jsonl: cannot be read"),
        (["gen", "--kind", "nope"], "no kind 'nope'"),
    ],
)
def test_wrong_words_are_refused_with_a_reason(words: list[str], message: str) -> None:
    code, output = call(*words)
    assert code == 1 and message in output


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("scheduler.py", "no scheduler 'scheduler.py'"),
        ("vllm-v2", "did you mean 'vllm-v"),
        ("nowhere.py:Scheduler", "there is no file nowhere.py"),
        ("no.such.module:Scheduler", "there is no module 'no.such.module'"),
        ("mini_vllm.core.scheduler:Nope", "has no class 'Nope'"),
    ],
)
def test_a_scheduler_that_is_not_there_is_named(target: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_class(target)


def test_what_a_scheduler_raises_is_reported_after_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "stuck.json"
    config = {"max_num_batched_tokens": 4, "enable_chunked_prefill": False}
    events = [{"op": "step"}, {"op": "add", "id": "r0", "prompt": {"len": 9}}, {"op": "step"}]
    path.write_text(json.dumps({"config": config, "events": events}))
    code, output = call("run", path)
    assert code == 1
    assert output.startswith('{"step":0,') and "the scheduler raised NoProgressError" in output


def overlaid(trace_file: Path, tmp_path: Path, line: str) -> list[dict]:
    """Replay with a copy of the scheduler whose choice of a victim is `line`."""
    source = Path(inspect.getfile(Scheduler)).read_text(encoding="utf-8")
    last = "        return self.running[-1]\n"
    assert source.count(last) == 1
    mine = tmp_path / "scheduler.py"
    mine.write_text(source.replace(last, f"        {line}\n"), encoding="utf-8")
    return list(replay_overlaid(trace_file, {"mini_vllm.core.scheduler": str(mine)}))


def test_labs_replay_with_the_learners_module(tmp_path: Path) -> None:
    trace = golden.select("pressure", having=["preemption", "fcfs"])[0].trace
    path = tmp_path / "t.json"
    path.write_text(dump_trace(trace))
    reference = list(run_reference(trace))
    assert overlaid(path, tmp_path, "return self.running[-1]") == reference
    assert overlaid(path, tmp_path, "return self.running[0]") != reference
    with pytest.raises(RuntimeError, match="NotImplementedError: TODO 03"):
        overlaid(path, tmp_path, 'raise NotImplementedError("TODO 03")')


def test_labs_that_never_end_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.trace.cli.LABS_SECONDS", 3)
    path = tmp_path / "t.json"
    path.write_text(dump_trace(golden.select("pressure", having=["preemption", "fcfs"])[0].trace))
    with pytest.raises(RuntimeError, match="no end within 3 s"):
        overlaid(path, tmp_path, "while True: pass")


def test_a_scheduler_that_raises_differs_by_its_error_alone() -> None:
    found = first_difference([{"step": 0, "error": "ValueError: no"}], lines())
    assert found is not None and found.fields == ("error",)


def test_a_trace_is_a_value() -> None:
    trace = parse_trace(ONE)
    assert replace(trace) == trace and hash(trace) == hash(parse_trace(ONE))
