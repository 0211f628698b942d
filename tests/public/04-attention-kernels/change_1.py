"""Change request 1: attention sinks."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.attention.reference import causal_mask


def test_change_1_the_first_four_stay_visible() -> None:
    """One new token at the end of 8, window 2."""
    row = causal_mask(1, 8, 2)[0].int().tolist()
    expect(row, [1, 1, 1, 1, 0, 0, 1, 1], at="seq_len 8, window 2")


def test_change_1_without_a_window_as_before() -> None:
    """No window: everything before it, and itself."""
    expect(causal_mask(2, 4, None).int().tolist(), [[1, 1, 1, 0], [1, 1, 1, 1]], at="no window")


def test_change_1_no_token_sees_a_later_one() -> None:
    """A prompt of 3 tokens, window 1: the first token sees itself alone."""
    expect(causal_mask(3, 3, 1)[0].int().tolist(), [1, 0, 0], at="row 0 of 3, window 1")
