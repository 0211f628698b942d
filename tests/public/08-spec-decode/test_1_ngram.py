"""Task 08.1: the n-gram search, and the proposer around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit.testing import expect
from mini_vllm.spec_decode.ngram_proposer import find_longest_matched_ngram_and_propose_tokens


def find(tokens: list[int], min_n: int, max_n: int, max_len: int = 100, k: int = 3) -> Any:
    found = find_longest_matched_ngram_and_propose_tokens(
        np.array(tokens, dtype=np.int64), min_n, max_n, max_len, k
    )
    return found.tolist() if hasattr(found, "tolist") else found


def test_08_1_what_followed_last_time_is_drafted() -> None:
    """The end of the text stood here before: what followed then is the draft."""
    tokens = [1, 2, 3, 4, 1, 2, 3]
    expect(find(tokens, 2, 3), [4, 1, 2], at="n from 2 to 3, k = 3", tokens=tokens)


def test_08_1_the_longest_match_wins() -> None:
    """A match of two tokens beats one of one token, also if that one stands earlier or later."""
    tokens = [2, 8, 1, 2, 9, 3, 2, 7, 1, 2]
    expect(
        find(tokens, 1, 3),
        [9, 3, 2],
        at="1 2 matches at index 2, 2 alone at 0 and 6",
        tokens=tokens,
    )


def test_08_1_among_equal_matches_the_first() -> None:
    """Two matches of the same length: the earlier one counts, as in vLLM."""
    tokens = [5, 1, 6, 1, 7, 1]
    expect(
        find(tokens, 1, 1, k=2),
        [6, 1],
        at="1 stands at index 1 and 3 before the end",
        tokens=tokens,
    )


def test_08_1_a_match_may_overlap_the_end() -> None:
    """In a loop the match reaches into the end itself; but it is not the end itself."""
    expect(
        find([1, 2, 3, 1, 2, 3, 1, 2], 3, 3), [3, 1, 2], at="3 1 2 stands at index 2 and at the end"
    )
    expect(find([7, 7, 7, 7], 1, 3), [7], at="7 7 7 stands at index 0, one token before the end")


def test_08_1_lengths_are_limits() -> None:
    """A match shorter than min_ngram does not count; beyond max_ngram nothing is compared."""
    tokens = [1, 2, 3, 9, 2, 3]
    expect(find(tokens, 3, 4), [], at="2 3 matches, but three tokens are asked for", tokens=tokens)
    tokens = [4, 5, 1, 9, 9, 8, 5, 1, 4, 5, 1]
    expect(
        find(tokens, 1, 2), [9, 9, 8], at="max_ngram 2: 5 1 matches first at index 1", tokens=tokens
    )


def test_08_1_no_match_no_draft() -> None:
    """Without a match, or with too little text, the answer is empty."""
    for tokens in ([1, 2, 3, 4], [1], [], [1, 1]):
        expect(
            find(tokens, 2, 4),
            [],
            at="nothing of at least two tokens stood here before",
            tokens=tokens,
        )


def test_08_1_drafts_end_with_the_text_and_the_model() -> None:
    """Fewer drafts where the text ends, and none at or beyond max_model_len."""
    tokens = [1, 2, 3, 1, 2]
    expect(find(tokens, 2, 2, k=9), [3, 1, 2], at="k = 9, but three tokens followed", tokens=tokens)
    expect(find(tokens, 2, 2, max_len=7), [3, 1], at="max_model_len 7: positions 5 and 6 are left")
    expect(find(tokens, 2, 2, max_len=5), [], at="max_model_len 5: the text is full")


@pytest.mark.parametrize("tokens", [[3] * 100_000, list(range(500)) * 200], ids=["one", "many"])
def test_08_1_a_long_text_takes_no_time(tokens: list[int]) -> None:
    """100,000 tokens are searched in whole arrays, not token by token in Python.

    Processor time is measured, so that a busy machine fails nothing.
    """
    import time

    array = np.array(tokens)
    times = []
    for _ in range(3):
        start = time.process_time()
        find_longest_matched_ngram_and_propose_tokens(array, 2, 5, 200_000, 4)
        times.append(time.process_time() - start)
    assert min(times) < 0.1, f"{min(times) * 1e3:.0f} ms for 100,000 tokens; 5 are enough"


def test_08_1_only_requests_with_a_new_token_get_drafts(lab: Any) -> None:
    """A request inside its prompt has said nothing yet, so nothing is guessed for it."""
    step = [lab.request("chunk", [1, 2, 1, 2], computed=0, scheduled=2, sampled=0),
            lab.request("ready", [1, 2, 1, 2]), lab.request("new", [1, 2, 3, 4])]  # fmt: skip
    at = "'chunk' got no token; the end of 'new' stood nowhere before"
    found = lab.look_up(step, 1, 2, 3, 64)
    expect(found, {"ready": [1, 2]}, at=at)
    kinds = [type(token).__name__ for token in found["ready"]]
    expect(kinds, ["int", "int"], at="drafts travel to other processes: numbers of Python's own")


def test_08_1_rejected_drafts_are_no_text(lab: Any) -> None:
    """Behind a row's num_tokens stand the drafts of earlier steps. They are not searched."""
    step = [lab.request("a", [49, 7, 8, 9, 5, 6])]
    at = "the row's array holds 49 behind the text's last token; a search of it would find 49"
    expect(lab.look_up(step, 1, 1, 3, 64), {}, at=at)
