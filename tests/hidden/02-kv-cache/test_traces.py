"""Whole replays with the subject's three modules under the course's own scheduler: recordings of
vLLM, and fresh random traces beside the reference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from labkit.trace import golden
from labkit.trace.diff import first_parting
from labkit.trace.generate import generate
from labkit.trace.kinds import KINDS


def replay_recordings(subject: Any, recordings: list[golden.Golden]) -> None:
    assert recordings
    for recorded in recordings:
        parting = first_parting(subject.trace(recorded.trace.to_dict()), recorded.lines)
        assert not parting, f"recording {recorded.name}: {parting}"


@pytest.mark.parametrize("profile", KINDS)
def test_02_7_recordings_of_vllm(subject: Any, profile: str) -> None:
    """Every block id that vLLM handed out."""
    replay_recordings(subject, golden.select(profile, limit=4))


@pytest.mark.parametrize("feature", ["same-step-hit", "output-hit", "resumed-hit"])
def test_02_5_recordings_with_hits(subject: Any, feature: str) -> None:
    """Hits on blocks of the same step, on another request's output, on one's own blocks."""
    replay_recordings(subject, golden.select(having=[feature], limit=3))


def test_02_5_bug_nano_vllm_144_full_hits(subject: Any) -> None:
    """A prompt of whole blocks that is all there left nothing to compute."""
    replay_recordings(subject, golden.select(having=["full-hit"], limit=4))


def test_02_6_recordings_under_pressure(subject: Any) -> None:
    """Free hits count as free blocks, and a refusal changes nothing (vLLM 11310, 11562)."""
    replay_recordings(subject, golden.select(having=["prefix-hit", "preemption"], limit=6))


def test_02_6_recordings_without_caching(subject: Any) -> None:
    """With caching off no block is ever shared."""
    replay_recordings(subject, golden.select(having=["caching-off"], limit=3))


@pytest.mark.parametrize("profile", ["prefix", "pressure", "mixed", "priority"])
@settings(max_examples=3, phases=[Phase.generate])
@given(seed=st.integers(0, 2**31))
def test_02_7_fresh_traces(subject: Any, reference: Any, profile: str, seed: int) -> None:
    """Traces made from the seed, with uncaching of refunded blocks on."""
    trace = generate(profile, seed, 40).to_dict()
    trace["config"]["uncache_refunded_blocks"] = True
    parting = first_parting(subject.trace(trace), reference.trace(trace))
    assert not parting, f"profile {profile}, seed {seed}: {parting}"
