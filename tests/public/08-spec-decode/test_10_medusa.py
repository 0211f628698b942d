"""Task 08.10: drafts from one hidden state."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def guesses(lab: Any, state: int, k: int) -> list[int]:
    """The toy's head number j adds j to the hidden state; logits choose the successor."""
    return [lab.successor(state + index) for index in range(k)]


def test_08_10_every_head_looks_at_the_same_state(lab: Any) -> None:
    """One decode: its hidden state is row 0; k heads give k guesses."""
    got = lab.look_ahead([lab.request("a", [1, 2, 3])], k=3)
    expect(got, {"a": guesses(lab, 0, 3)}, at="hidden state 0, 3 heads")


def test_08_10_the_state_of_the_last_token_that_stays(lab: Any) -> None:
    """3 drafts, 1 accepted: the newest token was sampled from row 1, not from a later one."""
    step = [lab.request("a", [1, 2, 3, 4, 5], computed=2, scheduled=4, drafts=3, sampled=2)]
    expect(lab.look_ahead(step, k=2), {"a": guesses(lab, 1, 2)}, at="rows 0 to 3; 0 and 1 stay")


def test_08_10_rows_of_each_request(lab: Any) -> None:
    """A prompt that ends, a chunk that does not, and a decode: rows 4, none, and 9."""
    step = [lab.request("p", range(6), computed=0, scheduled=5),
            lab.request("chunk", range(9), computed=0, scheduled=4, sampled=0),
            lab.request("d", [1, 2, 3])]  # fmt: skip
    expected = {"p": guesses(lab, 4, 2), "d": guesses(lab, 9, 2)}
    expect(lab.look_ahead(step, k=2), expected, at="tokens 5 + 4 + 1")


def test_08_10_a_step_without_sampled_tokens(lab: Any) -> None:
    """Only chunks of prompts: no drafts, no error."""
    step = [lab.request("chunk", range(9), computed=0, scheduled=4, sampled=0)]
    expect(lab.look_ahead(step, k=2), {}, at="one chunk")
