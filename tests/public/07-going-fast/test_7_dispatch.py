"""Task 07.7: which graph serves a step."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.worker.cudagraph_dispatcher import CUDAGraphMode, dispatch, is_uniform_decode

SIZES = (1, 2, 4, 8, 16)
DECODES, MIXED = True, False
NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
TABLE = [
    # mode, tokens, decodes?, -> kind, tokens, requests, uniform; at most 8 requests
    ("NONE", 3, DECODES, NONE, 3, None, False),
    ("NONE", 8, MIXED, NONE, 8, None, False),
    ("PIECEWISE", 3, DECODES, PIECEWISE, 4, None, False),
    ("PIECEWISE", 11, MIXED, PIECEWISE, 16, None, False),
    ("FULL", 3, DECODES, FULL, 4, 4, False),
    ("FULL", 3, MIXED, FULL, 4, 4, False),
    ("FULL", 11, MIXED, FULL, 16, 8, False),
    ("FULL_DECODE_ONLY", 3, DECODES, FULL, 4, 4, True),
    ("FULL_DECODE_ONLY", 8, DECODES, FULL, 8, 8, True),
    ("FULL_DECODE_ONLY", 3, MIXED, NONE, 3, None, False),
    ("FULL_DECODE_ONLY", 11, MIXED, NONE, 11, None, False),
    ("FULL_AND_PIECEWISE", 3, DECODES, FULL, 4, 4, True),
    ("FULL_AND_PIECEWISE", 1, DECODES, FULL, 1, 1, True),
    ("FULL_AND_PIECEWISE", 3, MIXED, PIECEWISE, 4, None, False),
    ("FULL_AND_PIECEWISE", 16, MIXED, PIECEWISE, 16, None, False),
]


def check(mode: str, num_tokens: int, expected: tuple[object, ...], **options: object) -> None:
    """Compare one row: kind of graph, tokens, requests, uniform."""
    arguments = {"sizes": SIZES, "max_num_reqs": 8} | options
    kind, padded = dispatch(CUDAGraphMode[mode], num_tokens=num_tokens, **arguments)
    yours = (kind.name, padded.num_tokens, padded.num_reqs, padded.uniform)
    at = f"{mode}, {num_tokens} tokens, {arguments}: kind, tokens, requests, uniform"
    expect(yours, expected, at=at)


@pytest.mark.parametrize(("mode", "tokens", "decodes", "kind", "size", "reqs", "uniform"), TABLE)
def test_07_7_the_table(
    mode: str, tokens: int, decodes: bool, kind: CUDAGraphMode, size: int, reqs: int | None,
    uniform: bool,
) -> None:  # fmt: skip
    """Each mode, for decodes and for all other steps."""
    check(mode, tokens, (kind.name, size, reqs, uniform), uniform_decode=decodes)


@pytest.mark.parametrize("mode", [mode.name for mode in CUDAGraphMode])
def test_07_7_larger_than_every_graph(mode: str) -> None:
    """A step that no graph holds is launched as it is, without padding."""
    check(mode, 17, ("NONE", 17, None, False))


@pytest.mark.parametrize(
    ("mode", "decodes", "kind", "size"),
    [("FULL", MIXED, "NONE", 3), ("FULL_DECODE_ONLY", DECODES, "NONE", 3),
     ("FULL_AND_PIECEWISE", DECODES, "PIECEWISE", 4), ("PIECEWISE", DECODES, "PIECEWISE", 4)],
)  # fmt: skip
def test_07_7_without_full_graphs(mode: str, decodes: bool, kind: str, size: int) -> None:
    """disable_full: what is left is a graph in pieces, or none."""
    expected = (kind, size, None, False)
    check(mode, 3, expected, uniform_decode=decodes, disable_full=True)


def test_07_7_more_rows_than_requests() -> None:
    """Six requests at most: a decode of 5 would need a graph of 8, which does not exist."""
    expected = ("PIECEWISE", 8, None, False)
    check("FULL_AND_PIECEWISE", 5, expected, max_num_reqs=6, uniform_decode=True)
    expected = ("NONE", 5, None, False)
    check("FULL_DECODE_ONLY", 5, expected, max_num_reqs=6, uniform_decode=True)


def test_07_7_drafts_widen_a_decode() -> None:
    """With 3 drafts a request has 4 tokens: a graph of 12 tokens is one of 3 requests."""
    sizes = (4, 8, 12, 32)
    for tokens, expected in ((8, ("FULL", 8, 2, True)), (9, ("FULL", 12, 3, True))):
        check("FULL_DECODE_ONLY", tokens, expected, sizes=sizes, max_num_reqs=4,
              uniform_decode=True, decode_query_len=4)  # fmt: skip
    expected = ("PIECEWISE", 32, None, False)
    check("FULL_AND_PIECEWISE", 16, expected, sizes=sizes, max_num_reqs=4,
          uniform_decode=True, decode_query_len=4)  # fmt: skip


def test_07_7_no_graphs_at_all() -> None:
    """Without sizes there is no graph, and none is the last: each step is launched as it is."""
    for mode in ("FULL", "PIECEWISE", "FULL_AND_PIECEWISE"):
        check(mode, 1, ("NONE", 1, None, False), sizes=())


@pytest.mark.parametrize(
    ("tokens", "requests", "longest", "drafts", "expected"),
    [(3, 3, 1, 0, True), (4, 3, 2, 0, False), (4, 1, 4, 0, False), (12, 3, 4, 3, True),
     (9, 3, 4, 3, False), (3, 3, 1, 3, False), (1, 1, 1, 0, True), (8, 2, 5, 3, False)],
)  # fmt: skip
def test_07_7_all_requests_decode(
    tokens: int, requests: int, longest: int, drafts: int, expected: bool
) -> None:
    """Every request has one token and its drafts, no more and no fewer."""
    at = f"{tokens} tokens of {requests} requests, {longest} of the longest, {drafts} drafts each"
    expect(is_uniform_decode(tokens, requests, longest, 1 + drafts), expected, at=at)
