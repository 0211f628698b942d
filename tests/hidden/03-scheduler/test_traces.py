"""Whole replays: recordings of vLLM's own scheduler, and fresh random traces beside the
reference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from labkit.trace import golden
from labkit.trace.diff import first_parting
from labkit.trace.generate import generate
from labkit.trace.kinds import KINDS

RECORDINGS = 5
"""Recordings of each profile; the project's own conformance tests replay all of them."""


def replay_recordings(subject: Any, recordings: list[golden.Golden]) -> None:
    assert recordings
    for recorded in recordings:
        parting = first_parting(subject.trace(recorded.trace.to_dict()), recorded.lines)
        assert not parting, f"recording {recorded.name}: {parting}"


@pytest.mark.parametrize("profile", KINDS)
def test_03_8_recordings_of_vllm(subject: Any, profile: str) -> None:
    """Every decision of vLLM's scheduler, step by step, block ids included."""
    replay_recordings(subject, golden.select(profile, limit=RECORDINGS))


@pytest.mark.parametrize("feature", ["storm", "self-victim", "resumed-hit", "skipped-running"])
def test_03_4_recordings_of_vllm_under_pressure(subject: Any, feature: str) -> None:
    """Recordings in which blocks run out."""
    replay_recordings(subject, golden.select(having=[feature], limit=3))


def test_03_4_bug_vllm_23346_refunded_victims(subject: Any) -> None:
    """A victim that was planned in the same step left its tokens in the plan."""
    replay_recordings(subject, golden.select(having=["refunded-victim"], limit=5))


def test_03_5_bug_vllm_11186_full_hits(subject: Any) -> None:
    """A full hit that computed one token only broke the block's alignment."""
    replay_recordings(subject, golden.select(having=["full-hit"], limit=4))


def test_03_5_bug_vllm_39608_the_threshold_without_chunking(subject: Any) -> None:
    """vLLM cuts a long prompt to the threshold even while chunked prefill is off."""
    replay_recordings(subject, golden.select(having=["threshold", "chunking-off"], limit=3))


@pytest.mark.parametrize("profile", KINDS)
@settings(max_examples=3, phases=[Phase.generate])
@given(seed=st.integers(0, 2**31), uncache=st.booleans())
def test_03_8_fresh_traces(
    subject: Any, reference: Any, profile: str, seed: int, uncache: bool
) -> None:
    """Traces made from the seed, in both ways of treating a refunded victim's blocks."""
    trace = generate(profile, seed, 40).to_dict()
    trace["config"]["uncache_refunded_blocks"] = uncache
    parting = first_parting(subject.trace(trace), reference.trace(trace))
    assert not parting, f"profile {profile}, seed {seed}, uncache {uncache}: {parting}"
