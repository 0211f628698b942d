"""Change request 2: later tokens count more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.testing import expect
from mini_vllm.pooling.seqwise import pool_chunk


def states(*tokens: float) -> Tensor:
    return torch.tensor([[token, token] for token in tokens])


def pool(lab: Any, *chunks: list[float], kept: list[Tensor] | None = None) -> Any:
    """What each chunk of a prompt gives. The chunk's memory is overwritten afterwards."""
    kept = [] if kept is None else kept
    length, end, found = sum(map(len, chunks)), 0, []
    for chunk in chunks:
        end += len(chunk)
        given = states(*chunk)
        result = pool_chunk("WEIGHTEDMEAN", given, end, length, kept)
        found.append(None if result is None else lab.rounded(result)[0][0])
        given.fill_(-99.0)
    expect(len(kept), 0, at="tensors that are kept behind the last chunk")
    return found


def test_change_2_in_one_chunk(lab: Any) -> None:
    """1 x 1 + 2 x 2 + 3 x 6 over 6."""
    expect(pool(lab, [1.0, 2, 6]), [3.8333], at="1 2 6")
    expect(pool(lab, [5.0]), [5.0], at="5")


def test_change_2_in_chunks(lab: Any) -> None:
    """A token counts by its place in the prompt, not in its chunk."""
    expect(pool(lab, [1.0, 2], [6.0]), [None, 3.8333], at="1 2 | 6")
    expect(pool(lab, [1.0], [2.0], [6.0]), [None, None, 3.8333], at="1 | 2 | 6")


def test_change_2_one_row_is_kept() -> None:
    """In float32, however many chunks there are."""
    kept: list[Tensor] = []
    for end in (3, 6, 9):
        pool_chunk("WEIGHTEDMEAN", states(1.0, 2, 3).bfloat16(), end, 12, kept)
    expect(sum(map(len, kept)), 1, at="rows kept behind three chunks of 3")
    expect([str(one.dtype) for one in kept], ["torch.float32"], at="its dtype")


def test_change_2_a_request_that_begins_anew(lab: Any) -> None:
    """It was preempted behind its first chunk."""
    kept: list[Tensor] = []
    pool_chunk("WEIGHTEDMEAN", states(9.0), 1, 3, kept)
    expect(pool(lab, [1.0, 2], [6.0], kept=kept), [None, 3.8333], at="9 |, then anew 1 2 | 6")


def test_change_2_the_others_are_as_before() -> None:
    """A mean is a mean."""
    kept: list[Tensor] = []
    pool_chunk("MEAN", states(1.0, 2), 2, 3, kept)
    result = pool_chunk("MEAN", states(6.0), 3, 3, kept)
    expect(None if result is None else result.tolist(), [[3.0, 3.0]], at="MEAN of 1 2 | 6")
