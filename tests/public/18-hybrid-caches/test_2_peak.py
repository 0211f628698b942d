"""Task 18.2: what a sequence holds at once, and how long a sequence fits."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.core import cache_groups
from mini_vllm.core.cache_groups import GroupSpec, longest_sequence


def test_18_2_full_layers_keep_everything(hy: Any) -> None:
    """No budget and no window: the blocks that the tokens fill, the last one begun."""
    got = [hy.FULL.peak_blocks(n, 8, 64) for n in (0, 1, 4, 5, 64)]
    expect(got, [0, 1, 1, 2, 16], at="blocks of 4, sequences of 0, 1, 4, 5, 64 tokens")


def test_18_2_a_window_holds_its_tokens_and_a_steps(hy: Any) -> None:
    """4 old tokens and 8 of a step are 3 blocks of 4; if they begin inside a block, 4."""
    got = [hy.window(5).peak_blocks(n, 8, 64) for n in (4, 12, 16, 64)]
    at = "window 5, budget 8, blocks of 4: sequences of 4, 12, 16, 64 tokens"
    expect(got, [1, 3, 4, 4], at=at)
    expect(hy.window(1).peak_blocks(64, 4, 64), 2, at="window 1, budget 4: only the step's tokens")


def test_18_2_a_chunk_begins_with_a_block(hy: Any) -> None:
    """8 old tokens and 8 of a step are 4 blocks, and a chunk never begins inside one."""
    got = [hy.local(8).peak_blocks(n, 8, 64) for n in (4, 16, 64)]
    expect(got, [1, 4, 4], at="chunk 8, budget 8, blocks of 4: sequences of 4, 16, 64 tokens")


def test_18_2_no_step_is_longer_than_the_model(hy: Any) -> None:
    """A budget of 64 and a window of 20, but no sequence outgrows 32 tokens: 8 blocks, and 1."""
    expect(hy.window(20).peak_blocks(99, 64, 32), 9, at="window 20, budget 64, max_model_len 32")
    expect(hy.local(20).peak_blocks(99, 64, 32), 8, at="chunk 20, budget 64, max_model_len 32")


@pytest.mark.parametrize(("mode", "blocks"), [("align", [0, 1, 2, 2]), ("all", [0, 1, 2, 4])])
def test_18_2_a_state_has_two_blocks_while_it_moves(mode: str, blocks: list[int]) -> None:
    """In mode "align"; in the others there is a state at every block's end."""
    spec = GroupSpec("mamba", 4, mode=mode)
    got = [spec.peak_blocks(n, 8, 64) for n in (0, 4, 8, 16)]
    expect(got, blocks, at=f"mode {mode!r}: sequences of 0, 4, 8, 16 tokens")


def test_18_2_a_pool_holds_more_tokens_than_it_has_slots(hy: Any) -> None:
    """5 blocks of 4 are no limit for a window of 5: it never holds more than 4."""
    got = longest_sequence([hy.window(5)], 5, 8, 64)
    expect(got, 64, at="5 blocks, window 5, budget 8, max_model_len 64: tokens that fit")
    got = longest_sequence([hy.FULL], 5, 8, 64)
    expect(got, 20, at="5 blocks of 4, full layers: tokens that fit")


def test_18_2_all_groups_share_the_blocks(hy: Any) -> None:
    """Full, window and state need 1 block each for 4 tokens; with 11 blocks 20 tokens fit."""
    groups = [hy.FULL, hy.window(5), hy.STATE]
    got = [longest_sequence(groups, blocks, 8, 64) for blocks in (2, 3, 5, 6, 11, 99)]
    at = "full, window 5 and state: tokens that 2, 3, 5, 6, 11 and 99 blocks hold"
    expect(got, [0, 4, 4, 8, 20, 64], at=at)


def test_18_2_few_questions_answer_it(hy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among a million lengths it asks some dozens of times: what is held never shrinks."""
    asked, real = [], cache_groups.peak_blocks

    def counted(*args: Any) -> int:
        asked.append(args)
        return real(*args)

    monkeypatch.setattr(cache_groups, "peak_blocks", counted)
    got = longest_sequence([hy.FULL], 100_001, 8, 1_000_000)
    expect(got, 400_004, at="100,001 blocks of 4, max_model_len 1,000,000: tokens that fit")
    assert len(asked) < 100, f"peak_blocks was asked {len(asked)} times; halve what is in question"
