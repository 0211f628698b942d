"""Task 08.3: keep drafts while they are right."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.sample.rejection_sampler import (
    PLACEHOLDER_TOKEN_ID as GAP,
)
from mini_vllm.sample.rejection_sampler import (
    keep_until_rejected,
    rejection_greedy_sample,
)


def greedy(drafts: list[list[int]], says: list[list[int]], bonus: list[int]) -> Any:
    flat = [
        torch.tensor([t for row in rows for t in row], dtype=torch.int64) for rows in (drafts, says)
    ]
    counts = [len(row) for row in drafts]
    return rejection_greedy_sample(flat[0], counts, flat[1], torch.tensor(bonus)).tolist()


def test_08_3_all_right_brings_the_bonus() -> None:
    """Every draft is what the target says: all stay, and one token more."""
    expect(greedy([[7, 3, 9]], [[7, 3, 9]], [8]), [[7, 3, 9, 8]], at="drafts 7 3 9, bonus 8")


def test_08_3_the_first_wrong_one_is_replaced() -> None:
    """The target's own token stands where its draft was wrong, and nothing behind it."""
    expect(greedy([[7, 3, 9]], [[7, 5, 9]], [8]), [[7, 5, GAP, GAP]], at="the target says 7 5 9")


def test_08_3_a_wrong_first_draft_still_brings_a_token() -> None:
    """A step brings at least one token, or decoding would stand still."""
    expect(greedy([[7]], [[2]], [8]), [[2, GAP]], at="draft 7, the target says 2")


def test_08_3_what_agrees_behind_a_rejection_does_not_count() -> None:
    """Behind a wrong draft the target has judged a text that does not exist."""
    at = "drafts 7 3 9; the target says 1 3 9: 3 and 9 follow the wrong 7"
    expect(greedy([[7, 3, 9]], [[1, 3, 9]], [8]), [[1, GAP, GAP, GAP]], at=at)


def test_08_3_requests_have_different_numbers_of_drafts() -> None:
    """A batch is ragged: 3, 0, 1 and 3 drafts."""
    got = greedy([[7, 3, 9], [], [4], [7, 3, 9]], [[7, 3, 5], [], [4], [7, 3, 9]], [80, 81, 82, 83])
    expected = [[7, 3, 5, GAP], [81, GAP, GAP, GAP], [4, 82, GAP, GAP], [7, 3, 9, 83]]
    expect(got, expected, at="3, 0, 1 and 3 drafts")


def test_08_3_no_drafts_at_all() -> None:
    """Without drafts every request gets its bonus, in a table of one column."""
    expect(greedy([[], []], [[], []], [5, 6]), [[5], [6]], at="two requests, no drafts")


def test_08_3_padding_is_not_accepted() -> None:
    """keep_until_rejected: what stands behind a request's drafts does not matter, even if True."""
    output = keep_until_rejected(
        torch.tensor([[True, True, True], [True, False, True]]),
        torch.tensor([[4, 5, 6], [4, 5, 6]]),
        [1, 3],
        torch.tensor([9, 9]),
    )
    expect(output.tolist(), [[4, 9, GAP, GAP], [4, 5, GAP, GAP]], at="1 and 3 drafts in 3 columns")


def test_08_3_a_token_may_look_like_the_mark() -> None:
    """Token 0 is a token: only what stands behind the last one is marked."""
    expect(greedy([[0, 0]], [[0, 0]], [0]), [[0, 0, 0]], at="drafts 0 0, bonus 0")
