"""Task 08.6: every row of logits is a request that already has its drafts."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.spec_decode.metadata import expand_to_rows


def test_08_6_parameters_of_the_request_in_every_row(lab: Any) -> None:
    """Two requests with 1 and 2 drafts: 2 and 3 rows, each with its request's temperature."""
    base = lab.metadata_of(9, {"temperature": 0.5, "seed": 1}, {"temperature": 2.0, "seed": 2})
    rows = expand_to_rows(base, [1, 2], torch.tensor([3, 4, 5]))
    expect(lab.listed(rows.temperature), [0.5, 0.5, 2.0, 2.0, 2.0], at="rows of requests 0 0 1 1 1")


def test_08_6_row_j_is_j_tokens_further(lab: Any) -> None:
    """Its random number and min_tokens depend on this count."""
    base = lab.metadata_of(9, {"output": [1, 2, 3]}, {"output": []})
    rows = expand_to_rows(base, [2, 1], torch.tensor([7, 7, 7]))
    expect(lab.listed(rows.num_output_tokens), [3, 4, 5, 0, 1], at="3 and 0 tokens so far")


def test_08_6_min_tokens_end_in_the_right_row(lab: Any) -> None:
    """min_tokens 3 and one token so far: rows 0 and 1 may not stop, row 2 may."""
    from mini_vllm.sample import Sampler

    base = lab.metadata_of(9, {"output": [1], "min_tokens": 3, "stop_token_ids": [8]})
    rows = expand_to_rows(base, [3], torch.tensor([2, 2, 2]))
    logits = Sampler.apply_processors(torch.zeros(4, 9), rows)
    banned = [bool(row[8] == -torch.inf) for row in logits]
    expect(banned, [True, True, False, False], at="is the stop token banned, row by row")


def test_08_6_penalties_count_the_drafts_before_a_row(lab: Any) -> None:
    """Row j counts its j drafts as output: not the one it judges, and none behind it."""
    base = lab.metadata_of(9, {"output": [4], "frequency_penalty": 1.0})
    rows = expand_to_rows(base, [2], torch.tensor([4, 6]))
    counts = rows.penalties.output_counts if rows.penalties else None
    got = [[int(row[4]), int(row[6])] for row in counts] if counts is not None else None
    expect(got, [[1, 0], [2, 0], [2, 1]], at="output 4, drafts 4 6: counts of 4 and 6 by row")


def test_08_6_a_draft_can_be_penalised_that_was_never_used(lab: Any) -> None:
    """The pairs of tokens in use grow, too: a count that no pair asks for does nothing."""
    from mini_vllm.sample import Sampler

    base = lab.metadata_of(9, {"presence_penalty": 1.0}, {})
    rows = expand_to_rows(base, [2, 1], torch.tensor([6, 7, 6]))
    logits = Sampler.apply_processors(torch.zeros(5, 9), rows)
    got = [[row[6].item(), row[7].item()] for row in logits]
    expected = [[0.0, 0.0], [-1.0, 0.0], [-1.0, -1.0], [0.0, 0.0], [0.0, 0.0]]
    expect(got, expected, at="drafts 6 7 of a request with a penalty, 6 of one without")


def test_08_6_what_is_kept_between_steps_stays(lab: Any) -> None:
    """The metadata that came in is used again in the next step."""
    base = lab.metadata_of(9, {"output": [4], "frequency_penalty": 1.0})
    expand_to_rows(base, [2], torch.tensor([5, 6]))
    got = [lab.listed(base.num_output_tokens), int(base.penalties.output_counts.sum())]
    expect(got, [[1], 1], at="tokens so far, and counted tokens, after the call")


def test_08_6_no_drafts_changes_nothing(lab: Any) -> None:
    """A batch without drafts has one row for each request, as it was."""
    base = lab.metadata_of(9, {"output": [1, 1], "presence_penalty": 0.5}, {"output": [2]})
    rows = expand_to_rows(base, [0, 0], torch.zeros(0, dtype=torch.int64))
    expect(lab.listed(rows.num_output_tokens), [2, 1], at="two requests, no drafts")
