"""The deliberate differences from vLLM: each on its own trace, with its reason in the notes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.trace.conformance import compare, replay_ours
from labkit.trace.diff import render
from labkit.trace.differences import FOLDER, DeliberateDifference, load, load_all
from labkit.trace.generate import deliberate_difference

NOTES = Path(__file__).resolve().parents[2] / "upstream_notes" / "DIFFERENCES.md"
NAMES = [difference.name for difference in load_all()]


def named(name: str) -> DeliberateDifference:
    return load(FOLDER / f"{name}.json")


@pytest.mark.parametrize("name", NAMES)
def test_we_do_what_the_file_says(name: str) -> None:
    difference = named(name)
    found = compare(replay_ours(difference.trace), difference.ours)
    assert found is None, render(found, "mini_vllm", "expected")


@pytest.mark.parametrize("name", NAMES)
def test_vllm_was_recorded_and_did_something_else(name: str) -> None:
    difference = named(name)
    assert difference.theirs.lines, "record it: python -m labkit conformance --record"
    assert compare(difference.ours, difference.theirs) is not None
    ends = name in ("unwritten-blocks", "encoder-refund", "chunked-image", "remote-holders")
    assert difference.outcome.startswith("all requests have ended" if ends else "hangs: ")


@pytest.mark.parametrize("name", NAMES)
def test_the_generator_leaves_such_traces_out(name: str) -> None:
    assert deliberate_difference(named(name).trace) is not None


def test_the_notes_name_every_file_and_no_other() -> None:
    linked = {
        part.split(".json")[0]
        for part in NOTES.read_text(encoding="utf-8").split("tests/conformance/differences/")[1:]
    }
    assert linked == set(NAMES)


def test_every_test_that_the_notes_name_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", NOTES.read_text(encoding="utf-8"))
    assert len(named) >= 6
    for file, name in named:
        text = (NOTES.parents[1] / "tests/engine" / file).read_text(encoding="utf-8")
        assert f"def {name}(" in text, f"there is no {name} in tests/engine/{file}"


def test_vllm_counts_an_image_that_was_not_encoded() -> None:
    difference = named("encoder-refund")
    ours, theirs = (
        [line["encode"] for line in a.lines] for a in (difference.ours, difference.theirs)
    )
    assert difference.ours.lines[2]["preempted"] == ["low"]
    assert [line for line in ours if line] == [{"low": [0]}] and not any(theirs)


def test_vllm_splits_an_image_although_it_is_told_not_to() -> None:
    difference = named("chunked-image")
    ours, theirs = (
        [line["scheduled"].get("cat", 0) for line in a.lines]
        for a in (difference.ours, difference.theirs)
    )
    assert (ours, theirs) == ([0, 7], [3, 4])


def test_a_request_larger_than_the_pool_ends_and_lets_the_others_run() -> None:
    lines = named("kv-capacity-prompt").ours.lines
    assert lines[0]["finished"] == [["big", "FINISHED_LENGTH_CAPPED", "kv_capacity"]]
    assert lines[0]["scheduled"] == {"small": 3}


def test_vllm_reads_a_block_that_was_never_written_and_we_do_not() -> None:
    """Six tokens of "b" were computed before it was preempted; vLLM's cache claims eight."""
    difference = named("unwritten-blocks")
    assert difference.ours.lines[1]["computed"]["b"] == 6
    assert difference.ours.lines[2]["preempted"] == ["b"]
    prompt = 9
    ours, theirs = (prompt_of(a.lines[3]) for a in (difference.ours, difference.theirs))
    assert (ours, theirs) == ({"hit": 4, "scheduled": 3}, {"hit": prompt - 1, "scheduled": 1})
    same = replace(difference.trace.config, uncache_refunded_blocks=False)
    as_vllm = replay_ours(replace(difference.trace, config=same))
    assert compare(as_vllm, difference.theirs) is None


def prompt_of(line: dict) -> dict[str, int]:
    """How much of b's 9-token prompt came from the cache, and how much is computed now."""
    scheduled = line["scheduled"]["b"]
    return {"hit": line["computed"].get("b", 9) - scheduled, "scheduled": scheduled}


def test_a_step_without_progress_raises_with_the_limits() -> None:
    error = named("no-progress-budget").ours.error
    assert error is not None
    assert "max_num_batched_tokens is 8" in error and "chunked prefill is off" in error
