"""Task 08.7: how many of a step's tokens stay."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.testing import expect
from mini_vllm.spec_decode.proposer import num_valid_tokens


def valid(lab: Any, *requests: tuple[int, int, int]) -> Any:
    columns = [np.array(column, dtype=np.int32) for column in zip(*requests, strict=True)]
    return lab.listed(num_valid_tokens(*columns))


def test_08_7_rejected_drafts_go(lab: Any) -> None:
    """4 drafts, 2 accepted: the newest token and 2 drafts stay, of 5 that were computed."""
    expect(valid(lab, (5, 4, 3)), [3], at="5 tokens, 4 of them drafts, 3 tokens came out")


def test_08_7_all_accepted_all_stay(lab: Any) -> None:
    """The bonus token was sampled, not computed: it is not among them."""
    expect(valid(lab, (5, 4, 5)), [5], at="5 tokens, 4 drafts, 5 tokens came out")


def test_08_7_all_rejected_only_the_newest_token_stays(lab: Any) -> None:
    """One token came out, the target's own: no draft was accepted."""
    expect(valid(lab, (5, 4, 1)), [1], at="5 tokens, 4 drafts, 1 token came out")


def test_08_7_a_chunk_of_a_prompt_stays_whole(lab: Any) -> None:
    """No token came out, and there were no drafts: nothing to take back."""
    expect(
        valid(lab, (16, 0, 0), (16, 0, 1)), [16, 16], at="a chunk, and the chunk that ends a prompt"
    )


def test_08_7_what_was_scheduled_counts_not_what_was_proposed(lab: Any) -> None:
    """The budget cut 4 drafts to 1: one can be rejected, not four."""
    expect(valid(lab, (2, 1, 1)), [1], at="2 tokens, 1 of them a draft, 1 token came out")
