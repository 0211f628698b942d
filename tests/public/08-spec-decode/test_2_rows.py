"""Task 08.2: which rows of logits judge which drafts."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.spec_decode.metadata import calc_spec_decode_metadata


def rows(num_drafts: list[int], ends: list[int]) -> Any:
    found = calc_spec_decode_metadata(num_drafts, ends)
    return [
        found.logits_indices.tolist(),
        found.target_logits_indices.tolist(),
        found.bonus_logits_indices.tolist(),
    ]


def test_08_2_the_example_of_the_docstring() -> None:
    """Three requests: 3 drafts, none behind a prompt of 100, 2 drafts."""
    expected = [[0, 1, 2, 3, 103, 104, 105, 106], [0, 1, 2, 5, 6], [3, 4, 7]]
    expect(rows([3, 0, 2], [4, 104, 107]), expected, at="drafts 3, 0, 2; tokens end at 4, 104, 107")


def test_08_2_one_request_with_drafts() -> None:
    """m drafts: the newest token and the drafts but the last judge, the last gives the bonus."""
    expect(rows([2], [3]), [[0, 1, 2], [0, 1], [2]], at="tokens t d0 d1 at 0, 1, 2")


def test_08_2_no_drafts_is_decoding_as_ever() -> None:
    """Without drafts each request has one row, its last token, and it is a bonus row."""
    expect(rows([0, 0], [1, 6]), [[0, 5], [], [0, 1]], at="two requests, tokens end at 1 and 6")


def test_08_2_drafts_behind_the_rest_of_a_prompt() -> None:
    """Only the last drafts + 1 tokens of a request become rows, however many it computes."""
    expect(rows([1], [10]), [[8, 9], [0], [1]], at="10 tokens, the last of them a draft")


def test_08_2_counts_are_kept_as_a_list() -> None:
    """num_draft_tokens says how to cut the flat drafts again, request by request."""
    expect(calc_spec_decode_metadata([1, 0, 3], [2, 3, 7]).num_draft_tokens, [1, 0, 3], at="drafts")
