"""Task 10.2: how long an all-reduce takes."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.distributed.collectives import one_shot_time, ring_time

US, GB = 1e-6, 1e9


def test_10_2_a_message_of_nothing() -> None:
    """Only latency: the ring pays it 2 (p - 1) times, one shot once."""
    expect(ring_time(0, 4, 1.0, 1.0), 6.0, at="ring, 4 ranks, no bytes, alpha 1")
    expect(one_shot_time(0, 4, 1.0, 1.0), 1.0, at="one shot, 4 ranks, no bytes, alpha 1")


def test_10_2_only_bytes() -> None:
    """A link of the ring carries nearly twice the tensor, however many ranks there are."""
    assert ring_time(800, 4, 0.0, 1.0) == pytest.approx(1200), "6 messages of 200 bytes"
    assert ring_time(800, 100, 0.0, 1.0) == pytest.approx(1584), "198 messages of 8 bytes"
    assert one_shot_time(800, 4, 0.0, 1.0) == pytest.approx(2400), "three whole tensors"
    assert ring_time(10, 4, 0.0, 1.0) == pytest.approx(15), "6 messages of 2.5 bytes, on average"


def test_10_2_alone() -> None:
    """One rank sends nothing, and waits for none."""
    expect(float(ring_time(1000, 1, 1.0, 1.0)), 0.0, at="ring, one rank")
    expect(float(one_shot_time(1000, 1, 1.0, 1.0)), 0.0, at="one shot, one rank")


def test_10_2_decode_and_prefill() -> None:
    """8 ranks, 5 us, 300 GB/s: one shot wins for a token, the ring for a prompt."""
    alpha, beta = 5 * US, 1 / (300 * GB)
    token, prompt = 8192.0, 4096 * 8192.0
    assert one_shot_time(token, 8, alpha, beta) == pytest.approx(5.191e-6, rel=1e-3)
    assert ring_time(token, 8, alpha, beta) == pytest.approx(70.05e-6, rel=1e-3)
    assert ring_time(prompt, 8, alpha, beta) == pytest.approx(265.7e-6, rel=1e-3)
    assert one_shot_time(prompt, 8, alpha, beta) == pytest.approx(788.0e-6, rel=1e-3)
