"""Task 10.4: which query, key and value heads a rank keeps."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.distributed.linear import QKVParallel

HEAD = 4
"""Rows of a head."""


def heads_of(lab: Any, rank: int, p: int, heads: int, kv_heads: int) -> list[list[int]]:
    """The heads of q, of k and of v that a rank has."""
    sizes = [heads * HEAD, kv_heads * HEAD, kv_heads * HEAD]
    parts = QKVParallel(lab.rank(rank, p), heads, kv_heads).parts(10, sizes)
    expect(lab.columns(parts), [[0, 10]] * 3, at=f"columns of rank {rank} of {p}")
    return [list(range(start // HEAD, end // HEAD)) for start, end in lab.rows(parts)]


def test_10_4_a_share_of_both(lab: Any) -> None:
    """8 query heads, 4 KV heads, 2 ranks."""
    at = "rank {} of 2, 8 query heads, 4 KV heads"
    expect(heads_of(lab, 0, 2, 8, 4), [[0, 1, 2, 3], [0, 1], [0, 1]], at=at.format(0))
    expect(heads_of(lab, 1, 2, 8, 4), [[4, 5, 6, 7], [2, 3], [2, 3]], at=at.format(1))


def test_10_4_more_ranks_than_kv_heads(lab: Any) -> None:
    """8 query heads, 2 KV heads, 4 ranks: neighbours share a KV head."""
    right = [[[0, 1], [0], [0]], [[2, 3], [0], [0]], [[4, 5], [1], [1]], [[6, 7], [1], [1]]]
    for rank, expected in enumerate(right):
        at = f"rank {rank} of 4, 8 query heads, 2 KV heads"
        expect(heads_of(lab, rank, 4, 8, 2), expected, at=at)


def test_10_4_one_kv_head_for_all(lab: Any) -> None:
    """Four ranks, one KV head: each has it."""
    for rank in range(4):
        at = f"rank {rank} of 4, 4 query heads, 1 KV head"
        expect(heads_of(lab, rank, 4, 4, 1), [[rank], [0], [0]], at=at)


def test_10_4_as_many_as_ranks(lab: Any) -> None:
    """6 query heads, 3 KV heads, 3 ranks."""
    expect(heads_of(lab, 2, 3, 6, 3), [[4, 5], [2], [2]], at="rank 2 of 3, 6 heads, 3 KV heads")


def test_10_4_no_query_head_without_its_keys(lab: Any) -> None:
    """Query head h looks at KV head h // (heads / kv_heads), which must be here."""
    for heads, kv_heads, p in ((8, 8, 8), (12, 4, 2), (12, 4, 12), (6, 3, 6), (16, 2, 8)):
        for rank in range(p):
            queries, keys, values = heads_of(lab, rank, p, heads, kv_heads)
            needed = sorted({query * kv_heads // heads for query in queries})
            at = f"rank {rank} of {p}, {heads} query heads, {kv_heads} KV heads"
            expect(keys, needed, at=f"{at}: KV heads for query heads {queries}")
            expect(values, keys, at=f"{at}: values")


@pytest.mark.parametrize(("heads", "kv_heads", "p"), [(4, 3, 2), (6, 2, 4), (8, 3, 4), (6, 2, 3)])
def test_10_4_what_does_not_come_out_even(lab: Any, heads: int, kv_heads: int, p: int) -> None:
    """Neither a query head nor a KV head is cut."""
    sizes = [heads * HEAD, kv_heads * HEAD, kv_heads * HEAD]
    with pytest.raises(ValueError):
        QKVParallel(lab.rank(0, p), heads, kv_heads).parts(10, sizes)
