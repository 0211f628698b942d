"""Task 04.6: many new tokens a request, causal, over pages."""

from __future__ import annotations

from typing import Any

import torch


def test_04_6_a_prompt_from_its_start(desk: Any) -> None:
    """Five tokens, none computed before: token i sees tokens 0 to i."""
    desk.check_prefill("ana's prompt has 5 tokens; block size 4", [(5, 0)])


def test_04_6_tokens_after_a_computed_prefix(desk: Any) -> None:
    """Three new tokens behind six computed ones: row i stands at position 6 + i."""
    desk.check_prefill("ana has 6 tokens computed and 3 new ones", [(3, 6)])


def test_04_6_a_prompt_in_half_precision(desk: Any) -> None:
    """float16 in, float16 out: `tl.dot` wants operands of one type, and weights are float32."""
    at = "ana has 2 tokens computed and 3 new ones; query, keys and values are float16"
    desk.check_prefill(at, [(3, 2)], dtype=torch.float16)


def test_04_6_requests_of_different_lengths(desk: Any) -> None:
    """A ragged batch: rows behind a request's end belong to the next request."""
    at = "tokens 0 to 2 are ana's, 3 ben's (behind 5 computed), 4 to 8 cleo's"
    desk.check_prefill(at, [(3, 0), (1, 5), (5, 2)])


def test_04_6_more_than_one_tile_of_queries(desk: Any) -> None:
    """35 new tokens take two query tiles; ben's two tokens leave the second one without work."""
    at = "tokens 0 to 34 are ana's, 35 and 36 ben's; QUERY_TILE 32"
    desk.check_prefill(at, [(35, 0), (2, 1)], block_size=16)


def test_04_6_heads_in_groups(desk: Any) -> None:
    """4 query heads share 2 key/value heads in groups of 2."""
    desk.check_prefill("4 heads, 2 key/value heads", [(3, 2)], group=2, kv_heads=2)


def test_04_6_a_window_for_every_row(desk: Any) -> None:
    """A window of 3: each row sees itself and the two tokens before it."""
    desk.check_prefill("ana has 4 tokens computed and 5 new ones; window 3", [(5, 4)], window=3)


def test_04_6_a_window_wider_than_the_context(desk: Any) -> None:
    """A window of 10 over 4 tokens hides nothing: keys begin at 0, not before."""
    desk.check_prefill("ana has 3 tokens computed and 1 new one; window 10", [(1, 3)], window=10)


def test_04_6_a_window_over_several_tiles(desk: Any) -> None:
    """A window of 33 and tiles of 32: each row sees parts of two tiles, and no row sees all."""
    at = "ana has 20 tokens computed and 34 new ones; window 33"
    desk.check_prefill(at, [(34, 20)], window=33, block_size=16)


def test_04_6_a_head_of_24_features(desk: Any) -> None:
    """24 features in a tile of 32: the last 8 lanes touch nothing."""
    desk.check_prefill("HEAD_DIM 24, DIM_TILE 32", [(4, 1)], dim=24)
