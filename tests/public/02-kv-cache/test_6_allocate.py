"""Task 02.6: slots for so many more tokens, or None and no trace of the question."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect


def test_02_6_blocks_are_added_at_every_border_and_only_there(kv: Any) -> None:
    """The last block is filled up first. "No new block" is an empty answer, not None."""
    manager = kv.manager()
    ana = kv.request("ana", 3, manager)
    got = [kv.admit(manager, ana).get_block_ids()]
    for _ in range(6):
        ana.append_output_token_ids(7)
        blocks = manager.allocate_slots(ana, 1)
        assert blocks is not None, "None means: too few free blocks. Here 6 of 7 are free"
        got.append(blocks.get_block_ids())
        ana.num_computed_tokens += 1
    at = "a prompt of 3 tokens, then 6 single ones, 4 to a block: new blocks of each call"
    expect(got, [[1], [], [2], [], [], [], [3]], at=at)
    expect(manager.get_block_ids("ana"), [1, 2, 3], at="ana's block table at the end")


def test_02_6_hits_come_first_in_the_table(kv: Any) -> None:
    """The table is hits, then new blocks; only the new ones are returned."""
    manager = kv.manager()
    kv.admit(manager, kv.request("ana", 8, manager))
    ben = kv.request("ben", kv.CHAT[:8] + kv.others(5), manager)
    blocks = kv.admit(manager, ben)
    expect(blocks.get_block_ids(), [3, 4], at="ben has 13 tokens and hits ana's blocks 1 and 2")
    expect(manager.get_block_ids("ben"), [1, 2, 3, 4], at="ben's block table")
    expect(kv.refs(manager), [2, 2, 1, 1, 0, 0, 0], at="holders of blocks 1 to 7")
    expect(manager.num_cached_blocks["ben"], 3, at="published blocks of ben: 13 tokens, 3 full")
    manager.check_integrity([ben])


def test_02_6_a_hit_is_never_given_out_as_a_new_block(kv: Any) -> None:
    """Free: 1 3 2, and 1 is a hit. Hold it before you take new blocks from the head."""
    manager = kv.manager(3)
    ana = kv.request("ana", 4, manager)
    kv.admit(manager, ana)
    big = kv.request("big", kv.others(8), manager)
    kv.admit(manager, big)
    kv.leave(manager, ana)
    kv.leave(manager, big)
    expect(kv.free(manager), [1, 3, 2], at="the free queue before ben comes")
    kv.admit(manager, kv.request("ben", 12, manager))
    expect(manager.get_block_ids("ben"), [1, 3, 2], at="ben has 12 tokens; block 1 is a hit")
    expect(kv.refs(manager), [1, 1, 1], at="holders of blocks 1 to 3")


def test_02_6_refused_means_nothing_has_happened(kv: Any) -> None:
    """None leaves queue, holders, tables and names as they were, down to the last entry."""
    manager = kv.manager()
    ana = kv.request("ana", 8, manager)
    kv.admit(manager, ana)
    kv.admit(manager, kv.request("big", kv.others(16), manager))
    kv.leave(manager, ana)
    before = kv.snapshot(manager)
    ben = kv.request("ben", 16, manager)
    answer = kv.admit(manager, ben)
    at = "ben needs 4 blocks; 2 are hits, and besides them only block 7 is free"
    expect(answer, None, at=at)
    for name, value in kv.snapshot(manager).items():
        expect(value, before[name], at=f"{at}: {name} after the refusal against before")


def test_02_6_a_free_hit_uses_up_a_free_block(kv: Any) -> None:
    """3 blocks are free, 2 of them hits. A request that needs 2 more cannot be served."""
    manager = kv.manager(3)
    ana = kv.request("ana", 8, manager)
    kv.admit(manager, ana)
    kv.leave(manager, ana)
    big = kv.admit(manager, kv.request("big", 16, manager))
    expect(big, None, at="2 free hits + 2 new blocks are wanted, 3 are free")
    fits = kv.admit(manager, kv.request("ben", 12, manager))
    assert fits is not None, "2 free hits + 1 new block are wanted, 3 are free: it fits exactly"
    expect(manager.get_block_ids("ben"), [1, 2, 3], at="ben's block table: no block is left over")


def test_02_6_a_hit_that_is_in_use_needs_no_free_block(kv: Any) -> None:
    """Ana still runs, so ben shares her two blocks and needs a single free one."""
    manager = kv.manager(3)
    kv.admit(manager, kv.request("ana", 8, manager))
    answer = kv.admit(manager, kv.request("ben", 9, manager))
    assert answer is not None, "2 hits in ana's hands + 1 new block are wanted, 1 is free"
    expect(kv.refs(manager), [2, 2, 1], at="holders of blocks 1 to 3")


def test_02_6_the_whole_sequence_may_be_asked_for(kv: Any) -> None:
    """full_sequence_must_fit refuses a chunk whose rest could not follow; it reserves nothing."""
    manager = kv.manager()
    long = kv.request("long", kv.others(32), manager)
    at = "32 tokens need 8 blocks, 7 are free; the first chunk has 4 tokens"
    expect(manager.allocate_slots(long, 4, full_sequence_must_fit=True), None, at=at)
    first = manager.allocate_slots(long, 4)
    assert first is not None, "without the flag the chunk alone is asked for, and it fits"
    manager = kv.manager()
    ana = kv.request("ana", kv.others(28), manager)
    answer = manager.allocate_slots(ana, 4, full_sequence_must_fit=True)
    assert answer is not None, "28 tokens need 7 blocks, 7 are free: it fits"
    expect(answer.get_block_ids(), [1], at="ana's first chunk: 4 of 28 tokens, blocks given")
    manager = kv.manager()
    kv.admit(manager, kv.request("ana", 8, manager))
    ben = kv.request("ben", 28, manager)
    hits, num_hits = manager.get_computed_blocks(ben)
    answer = manager.allocate_slots(ben, 4, num_hits, hits, full_sequence_must_fit=True)
    assert answer is not None, "28 tokens need 7 blocks; 2 are hits and 5 are free: it fits"
    short = kv.manager(2, max_model_len=8)
    answer = short.allocate_slots(kv.request("cleo", 12, short), 4, full_sequence_must_fit=True)
    assert answer is not None, "12 tokens, but max_model_len 8 needs 2 blocks, and 2 are free"


def test_02_6_lookahead_slots_end_at_the_models_length(kv: Any) -> None:
    """Slots for drafts come on top, but no sequence outgrows max_model_len."""
    manager = kv.manager(max_model_len=10)
    ana = kv.request("ana", 8, manager)
    answer = manager.allocate_slots(ana, 8, num_lookahead_tokens=6)
    at = "8 tokens and 6 of lookahead, max_model_len 10: slots for 10 tokens"
    expect(answer.get_block_ids(), [1, 2, 3], at=at)
    ben = kv.request("ben", kv.others(7), manager)
    answer = manager.allocate_slots(ben, 7, num_lookahead_tokens=1)
    expect(answer.get_block_ids(), [4, 5], at="7 tokens and 1 of lookahead: slots for 8 tokens")
    with pytest.raises(ValueError):
        manager.allocate_slots(kv.request("cleo", 4, manager), 0)


def test_02_6_full_blocks_are_findable_at_once(kv: Any) -> None:
    """Certain tokens only, no drafts; nothing at all with caching off."""
    manager = kv.manager()
    ana = kv.request("ana", 9, manager)
    manager.allocate_slots(ana, 6)
    at = "6 of ana's 9 tokens are planned, none is computed: tokens that ben finds"
    expect(manager.get_computed_blocks(kv.request("ben", 9, manager))[1], 4, at=at)
    cleo = kv.request("cleo", kv.others(5), manager)
    cleo.spec_token_ids = [1, 2, 3, 4]
    manager.allocate_slots(cleo, 9)
    at = "cleo has 5 tokens and 4 drafts in 3 blocks; drafts may be rejected: blocks published"
    expect(manager.num_cached_blocks["cleo"], 1, at=at)
    off = kv.manager(caching=False)
    off.allocate_slots(kv.request("dora", 9), 9)
    expect(off.block_pool.cached_blocks, {}, at="enable_caching is False: names in cached_blocks")
