"""Task 17.10: pool a prompt that comes in chunks. A state is [token, token] here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.testing import expect
from mini_vllm.pooling.seqwise import embedding, pool_chunk


def states(*tokens: float) -> Tensor:
    return torch.tensor([[token, token] for token in tokens])


def pool(kind: str, *chunks: list[float]) -> Any:
    """What each chunk of a prompt gives. The chunk's memory is overwritten afterwards."""
    kept: list[Tensor] = []
    length, end, found = sum(map(len, chunks)), 0, []
    for chunk in chunks:
        end += len(chunk)
        given = states(*chunk)
        result = pool_chunk(kind, given, end, length, kept)
        found.append(None if result is None else result[:, 0].tolist())
        given.fill_(-99.0)
    if kept:
        raise AssertionError(
            f"{kind}: kept holds {len(kept)} tensors behind the last chunk; empty it"
        )
    return found


def test_17_10_the_last_token() -> None:
    """LAST: the state of the last token, which alone has seen everything."""
    expect(pool("LAST", [1.0, 2, 3], [4.0, 5]), [None, [5.0]], at="LAST of 1 2 3 | 4 5")


def test_17_10_the_first_token() -> None:
    """CLS: the state of the prompt's first token, not of the chunk's."""
    expect(pool("CLS", [1.0, 2, 3], [4.0, 5]), [None, [1.0]], at="CLS of 1 2 3 | 4 5")
    expect(pool("CLS", [7.0, 2]), [[7.0]], at="CLS of 7 2 in one chunk")


def test_17_10_the_mean_of_all_chunks() -> None:
    """MEAN: (1 + 2 + 3 + 4 + 5) / 5, not the mean of the last chunk, nor of two means."""
    expect(pool("MEAN", [1.0, 2, 3], [4.0, 5]), [None, [3.0]], at="MEAN of 1 2 3 | 4 5")
    found = pool("MEAN", [8.0], [1.0], [3.0])
    expect(found, [None, None, [4.0]], at="MEAN of 8 | 1 | 3")


def test_17_10_all_states() -> None:
    """Any other kind: all states in their order, for tasks that judge each token."""
    expect(pool("ALL", [1.0, 2], [3.0]), [None, [1.0, 2.0, 3.0]], at="ALL of 1 2 | 3")


def test_17_10_a_request_that_begins_anew() -> None:
    """A request that was preempted begins anew: what was kept is forgotten."""
    for kind, wanted in (("MEAN", [5.0]), ("CLS", [4.0]), ("ALL", [4.0, 6.0])):
        kept: list[Tensor] = []
        pool_chunk(kind, states(1.0), 1, 2, kept)
        result = pool_chunk(kind, states(4.0, 6.0), 2, 2, kept)
        shown = None if result is None else result[:, 0].tolist()
        expect(shown, wanted, at=f"{kind}: 1 |, then from the start 4 6")


def test_17_10_little_is_kept() -> None:
    """What is kept is one row for CLS and MEAN, and none for LAST."""
    for kind, rows in (("CLS", 1), ("MEAN", 1), ("LAST", 0)):
        kept: list[Tensor] = []
        for end in (3, 6, 9):
            pool_chunk(kind, states(1.0, 2, 3), end, 12, kept)
        held = sum(x.numel() for x in kept) // 2
        expect(held, rows, at=f"{kind}: rows kept behind three chunks of 3")


def test_17_10_a_mean_is_float32() -> None:
    """A mean is summed in float32: in bfloat16, 256 + 1 is 256."""
    kept: list[Tensor] = []
    pool_chunk("MEAN", torch.full((256, 1), 1.0).bfloat16(), 256, 257, kept)
    result = pool_chunk("MEAN", torch.ones(1, 1).bfloat16(), 257, 257, kept)
    expect(None if result is None else result.tolist(), [[1.0]], at="257 ones in bfloat16")
    expect(str(getattr(result, "dtype", None)), "torch.float32", at="the mean's dtype")


def test_17_10_cut_then_normalised(lab: Any) -> None:
    """3 4 12 cut to two has length 5."""
    pooled = torch.tensor([[3.0, 4.0, 12.0]])
    expect(lab.rounded(embedding(pooled, 2, True)), [[0.6, 0.8]], at="3 4 12, two dimensions")
    expect(lab.rounded(embedding(pooled, None, True)), [[0.2308, 0.3077, 0.9231]], at="all three")
    expect(embedding(pooled, 2, False).tolist(), [[3.0, 4.0]], at="not normalised")


def test_17_10_each_row_by_itself(lab: Any) -> None:
    """Rows of zeros stay zeros."""
    found = lab.rounded(embedding(torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]]), None, True))
    expect(found, [[0.6, 0.8], [0.0, 0.0], [0.0, 1.0]], at="rows 3 4, 0 0, 0 2")
