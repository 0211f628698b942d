"""Change request 1: the last match."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.spec_decode.ngram_proposer import find_longest_matched_ngram_and_propose_tokens


def drafts(text: list[int], k: int = 2) -> list[int]:
    found = find_longest_matched_ngram_and_propose_tokens(text, 1, 3, 100, k)
    return [int(token) for token in found]


def test_change_1_the_last_of_equal_matches() -> None:
    """1 2 occurs twice before the end."""
    expect(drafts([7, 1, 2, 9, 1, 2, 5, 1, 2]), [5, 1], at="7 1 2 9 1 2 5 1 2")


def test_change_1_length_still_comes_first() -> None:
    """An earlier, longer match beats a later, shorter one."""
    expect(drafts([3, 1, 2, 8, 2, 6, 3, 1, 2]), [8, 2], at="3 1 2 8 2 6 3 1 2")
