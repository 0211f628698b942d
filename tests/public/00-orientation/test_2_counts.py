"""Task 00.2: how many tokens are there?"""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def test_00_2_a_new_request_has_its_prompt(tea: Any) -> None:
    """Before the first step the prompt is all there is."""
    request = tea()
    expect(request.num_tokens, 5, at="num_tokens: prompt of 5 tokens, no output")
    expect(request.num_tokens_with_spec, 5, at="num_tokens_with_spec: prompt of 5, no drafts")


def test_00_2_output_counts(tea: Any) -> None:
    """Sampled tokens are certain: both counts include them, once."""
    request = tea(output=[21, 22])
    expect(request.num_tokens, 7, at="num_tokens: prompt of 5 tokens, output of 2")
    expect(request.num_tokens_with_spec, 7, at="num_tokens_with_spec: prompt of 5, output of 2")


def test_00_2_drafts_are_no_tokens_yet(tea: Any) -> None:
    """`num_tokens` leaves drafts out: they are not verified yet."""
    request = tea(output=[21], drafts=[31, 32, 33])
    expect(request.num_tokens, 6, at="num_tokens: prompt of 5, output of 1, 3 drafts")


def test_00_2_drafts_are_work(tea: Any) -> None:
    """`num_tokens_with_spec` counts drafts: the model must compute them to verify them."""
    request = tea(output=[21], drafts=[31, 32, 33])
    at = "num_tokens_with_spec: prompt of 5, output of 1, 3 drafts"
    expect(request.num_tokens_with_spec, 9, at=at)


def test_00_2_computed_tokens_do_not_change_the_counts(tea: Any) -> None:
    """The counts say how far there is to go, not how far it is from here."""
    request = tea(output=[21])
    request.num_computed_tokens = 5
    at = "prompt of 5, output of 1, of which 5 are computed"
    expect(request.num_tokens_with_spec, 6, at=at)
    gap = request.num_tokens_with_spec - request.num_computed_tokens
    expect(gap, 1, at="the gap while decoding: the token sampled last", num_computed_tokens=5)


def test_00_2_the_counts_follow_the_lists(tea: Any) -> None:
    """The counts are read anew each time, so they grow with the lists."""
    request = tea()
    before = request.num_tokens, request.num_tokens_with_spec
    request.output_token_ids.append(21)
    request.all_token_ids.append(21)
    after = request.num_tokens, request.num_tokens_with_spec
    expect((before, after), ((5, 5), (6, 6)), at="both counts, before and after one token")
    request.spec_token_ids = [31]
    drafted = request.num_tokens, request.num_tokens_with_spec
    expect(drafted, (6, 7), at="both counts, after one token and one draft")
