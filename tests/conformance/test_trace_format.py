"""The trace format: defaults, limits, error messages, and the pretended model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.trace.format import (
    STEP_FIELDS,
    Add,
    Drain,
    Prompt,
    Step,
    TraceConfig,
    TraceError,
    dump_trace,
    fnv1a64,
    load_trace,
    parse_trace,
    prompt_tokens,
    sample_token,
)
from labkit.trace.generate import generate
from labkit.trace.kinds import KINDS
from labkit.trace.runner import run_reference


def config(**values: object) -> dict:
    return {"events": [], "config": values}


def one(**event: object) -> dict:
    return {"events": [{"op": "add", "id": "r0", "prompt": [1]} | event]}


def test_defaults_are_those_of_the_format() -> None:
    trace = parse_trace(
        {
            "events": [
                {"op": "add", "id": "a", "prompt": [5]},
                {"op": "add", "id": "b", "prompt": {"len": 3}},
                {"op": "step"},
                {"op": "drain"},
            ]
        }
    )
    assert trace.config == TraceConfig(
        max_num_batched_tokens=2048, max_num_seqs=128, block_size=16, num_gpu_blocks=1024,
        max_model_len=2048, enable_prefix_caching=True, long_prefill_token_threshold=0,
        enable_chunked_prefill=True, policy="fcfs", scheduler_reserve_full_isl=True,
        uncache_refunded_blocks=False, vocab_size=32000, eos_token_id=None,
    )  # fmt: skip
    assert trace.events == (
        Add("a", (5,), max_tokens=8, priority=0, arrival=0.0, min_tokens=0),
        Add("b", Prompt(3, seed=0, share=0), arrival=1.0),
        Step(1),
        Drain(10000),
    )


@pytest.mark.parametrize(
    ("text", "hash_"),
    [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("foobar", 0x85944171F73967E8)],
)
def test_fnv1a64_matches_the_published_vectors(text: str, hash_: int) -> None:
    assert fnv1a64(text) == hash_


def test_tokens_come_from_the_hashes_named_in_the_format() -> None:
    assert sample_token("r3", 17, 100) == fnv1a64("r3:17") % 100
    assert prompt_tokens(Prompt(4, seed=9, share=2), 1000) == [
        fnv1a64("shared:0") % 1000, fnv1a64("shared:1") % 1000,
        fnv1a64("9:2") % 1000, fnv1a64("9:3") % 1000,
    ]  # fmt: skip
    assert prompt_tokens((4, 5), 2) == [4, 5]


@pytest.mark.parametrize(
    ("data", "message"),
    [  # (trace, part of the message)
        ({"events": [], "confg": {}}, "no key 'confg'; did you mean 'config'?"),
        (config(blok_size=4), "no key 'blok_size'; did you mean 'block_size'?"),
        (config(block_size=0), "block_size is 0; it must be at least 1"),
        (config(num_gpu_blocks=1), "num_gpu_blocks is 1; it must be at least 2"),
        (config(policy="lifo"), "policy is 'lifo'; it must be 'fcfs' or"),
        (config(enable_prefix_caching=1), "is 1; it must be true or false"),
        (config(max_num_seqs=True), "is True; it must be a whole number"),
        (config(max_num_seqs=2.0), "is 2.0; it must be a whole number"),
        ({"config": {}}, "events must be a list"),
        ([], "trace: must be an object, not list"),
        ({"events": [{"op": "ad", "id": "r0"}]}, "events[0]: no op 'ad'; did you mean 'add'?"),
        ({"events": [{"id": "r0"}]}, "an event is an object with an `op`: add, abort, step, drain"),
        ({"events": [{"op": "add", "id": "r0"}]}, "events[0]: `prompt` is missing"),
        (one(prompt=[]), "prompt is empty; it must hold at least 1 token"),
        (one(prompt="hello"), 'it must be a list of token ids, or {"len": n'),
        (one(prompt={"len": 0}), "prompt: len is 0; it must be at least 1"),
        (one(prompt={"length": 3}), "prompt: no key 'length'; did you mean 'len'?"),
        (one(max_tokens=0), "max_tokens is 0; it must be at least 1"),
        (one(max_token=4), "no key 'max_token'; did you mean 'max_tokens'?"),
        (one(min_tokens=9), "min_tokens is 9; it must be at most max_tokens, 8"),
        (one(prompt={"len": 3000}), "the prompt has 3000 tokens; max_model_len is 2048"),
        ({"events": [one()["events"][0]] * 2}, "events[1]: id 'r0' was added before"),
    ],
)  # fmt: skip
def test_a_wrong_trace_is_refused_with_place_value_and_fix(data: object, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace(data)
    assert message in str(caught.value)


def test_bad_json_names_file_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"config": {},\n "events": [,]}\n')
    with pytest.raises(TraceError, match=r"bad\.json, line 2, column 13: this is not JSON"):
        load_trace(path)
    with pytest.raises(TraceError, match="there is no such file"):
        load_trace(tmp_path / "missing.json")


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 10_000))
def test_a_trace_survives_writing_and_reading(kind: str, seed: int) -> None:
    trace = generate(kind, seed, 20)
    assert parse_trace(json.loads(dump_trace(trace))) == trace


def test_step_lines_have_exactly_the_fields_of_the_format() -> None:
    line = next(run_reference(parse_trace(one() | {"events": [*one()["events"], {"op": "step"}]})))
    assert tuple(line) == STEP_FIELDS
    assert line == {
        "step": 0, "scheduled": {"r0": 1}, "preempted": [], "finished": [], "aborted": [],
        "new_block_ids": {"r0": [1]}, "computed": {"r0": 1}, "running": ["r0"], "waiting": [],
        "free_blocks": 1022,
    }  # fmt: skip


def run(*events: dict, **config: object) -> list[dict]:
    return list(run_reference(parse_trace({"config": config, "events": list(events)})))


def test_an_abort_shows_in_the_next_step_and_only_if_it_ended_something() -> None:
    add = {"op": "add", "id": "r0", "prompt": [1], "max_tokens": 1}
    again = add | {"id": "r1", "max_tokens": 5}
    abort = [{"op": "abort", "id": i} for i in ("r0", "r1", "unknown")]
    lines = run(add, again, {"op": "step"}, *abort, {"op": "step", "n": 2})
    assert lines[0]["finished"] == [["r0", "FINISHED_LENGTH_CAPPED", "length"]]
    assert [line["aborted"] for line in lines] == [[], ["r1"], []]
    assert lines[1]["scheduled"] == {} and lines[1]["free_blocks"] == 1023


def test_drain_stops_without_requests_or_at_its_limit() -> None:
    add = {"op": "add", "id": "r0", "prompt": [1], "max_tokens": 4}
    assert len(run(add, {"op": "drain"})) == 4
    assert len(run(add, {"op": "drain", "max": 3})) == 3
    assert run({"op": "drain"}) == []


def test_steps_without_work_are_printed_too() -> None:
    lines = run({"op": "step", "n": 2})
    assert [line["step"] for line in lines] == [0, 1]
    assert all(line["scheduled"] == {} for line in lines)


def test_waiting_is_listed_in_the_order_of_popping() -> None:
    adds = [
        {"op": "add", "id": f"r{i}", "prompt": [1], "priority": priority}
        for i, priority in enumerate((2, 1, 1, 0))
    ]
    lines = run(*adds, {"op": "step"}, policy="priority", max_num_seqs=1)
    assert lines[0]["running"] == ["r3"]
    assert lines[0]["waiting"] == ["r1", "r2", "r0"]


def test_the_reason_is_the_stop_token_or_the_kind_of_end() -> None:
    token = sample_token("r0", 1, 10)
    add = {"op": "add", "id": "r0", "prompt": [1]}
    stop = run(add | {"stop_token_ids": [token]}, {"op": "step"}, vocab_size=10)
    assert stop[0]["finished"] == [["r0", "FINISHED_STOPPED", token]]
    eos = run(add, {"op": "step"}, vocab_size=10, eos_token_id=token)
    assert eos[0]["finished"] == [["r0", "FINISHED_STOPPED", "stop"]]
    ignored = run(add | {"ignore_eos": True}, {"op": "step"}, vocab_size=10, eos_token_id=token)
    assert ignored[0]["finished"] == []
