"""The KV cache manager: lookups, slots, publishing and freeing (R26 to R35)."""

from __future__ import annotations

import pytest

from mini_vllm.core.kv_cache_manager import (
    KVCacheBlocks,
    KVCacheManager,
    PrefixCacheStats,
    cdiv,
)
from mini_vllm.request import Request
from tests.engine.core.build import make_request


def make_manager(
    blocks: int = 7, block_size: int = 4, max_model_len: int = 64, caching: bool = True
) -> KVCacheManager:
    return KVCacheManager(blocks + 1, block_size, max_model_len, caching, hash_root=b"root")


def request_for(manager: KVCacheManager, name: str, prompt: object, **kwargs: object) -> Request:
    request = make_request(name, prompt, **kwargs)  # type: ignore[arg-type]
    if manager.enable_caching:
        request.set_block_hasher(manager.block_hasher)
    return request


def admit(manager: KVCacheManager, request: Request, num_new: int | None = None) -> list[int]:
    """Look up, allocate and count as computed, as the scheduler does; the whole table."""
    hits, num_hits = manager.get_computed_blocks(request)
    num_new = request.num_tokens - num_hits if num_new is None else num_new
    assert manager.allocate_slots(request, num_new, num_hits, hits) is not None
    request.num_computed_tokens = num_hits + num_new
    manager.check_integrity([request])
    return manager.get_block_ids(request.request_id)


def free_ids(manager: KVCacheManager) -> list[int]:
    return [block.block_id for block in manager.block_pool.free_block_queue]


def snapshot(manager: KVCacheManager) -> object:
    """Everything that a failed allocation must leave as it was."""
    pool = manager.block_pool
    return (
        free_ids(manager),
        [(b.ref_cnt, b.block_hash) for b in pool.blocks],
        {h: list(blocks) for h, blocks in pool.cached_blocks.items()},
        {i: manager.get_block_ids(i) for i in manager.req_to_blocks},
        dict(manager.num_cached_blocks),
    )


TOKENS = list(range(100, 140))


@pytest.mark.parametrize(("a", "b", "c"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2)])
def test_cdiv(a: int, b: int, c: int) -> None:
    assert cdiv(a, b) == c


@pytest.mark.history("MinivLLM#75", "nano-vllm#30", "MinivLLM@16947fa")
@pytest.mark.parametrize("start", [3, 4, 5, 7, 8, 9])
def test_bug_minivllm_75_a_block_is_added_at_every_boundary_and_only_there(start: int) -> None:
    """Off by one at ``len % block_size``: one engine preempted at 0 and ran out at 1."""
    manager = make_manager()
    request = request_for(manager, "r", TOKENS[:start])
    assert len(admit(manager, request)) == cdiv(start, 4)
    for _ in range(6):
        request.append_output_token_ids(1)
        blocks = manager.allocate_slots(request, 1)
        assert blocks is not None
        assert len(blocks.get_block_ids()) == (request.num_computed_tokens % 4 == 0)
        request.num_computed_tokens += 1
        assert len(manager.get_block_ids("r")) == cdiv(request.num_tokens, 4)


@pytest.mark.history("nano-vllm#144-2", "vllm#11186", "vllm#9972")
def test_r26_bug_nano_vllm_144_a_full_prefix_hit_recomputes_the_last_block() -> None:
    """8 tokens, both blocks cached: 4 hit, 4 are computed again.

    A prompt of whole blocks, all of them found, left no token to compute; and computing just
    one token broke the alignment of blocks. So the last token never hits.
    """
    manager = make_manager()
    admit(manager, request_for(manager, "a", TOKENS[:8]))
    hits, num_hits = manager.get_computed_blocks(request_for(manager, "b", TOKENS[:8]))
    assert (hits.get_block_ids(), num_hits) == ([1], 4)
    longer, num_longer = manager.get_computed_blocks(request_for(manager, "c", TOKENS[:9]))
    assert (longer.get_block_ids(), num_longer) == ([1, 2], 8)


def test_r26_hits_end_at_the_first_miss() -> None:
    """Blocks 0 and 2 of a prompt are findable, block 1 is not: one hit."""
    manager = make_manager()
    request = request_for(manager, "a", TOKENS[:13])
    admit(manager, request)
    manager.block_pool.evict(manager.req_to_blocks["a"][1])
    manager.num_cached_blocks["a"] = 1
    hits, num_hits = manager.get_computed_blocks(request_for(manager, "b", TOKENS[:13]))
    assert (hits.get_block_ids(), num_hits) == ([1], 4)


def test_r26_lookups_can_be_off() -> None:
    off = make_manager(caching=False)
    admit(off, request_for(off, "a", TOKENS[:9]))
    assert off.get_computed_blocks(request_for(off, "b", TOKENS[:9]))[1] == 0
    on = make_manager()
    admit(on, request_for(on, "a", TOKENS[:9]))
    wants_logprobs = request_for(on, "b", TOKENS[:9], prompt_logprobs=1)
    assert on.get_computed_blocks(wants_logprobs) == (KVCacheBlocks(), 0)


@pytest.mark.history("vllm-ascend#2083")
def test_bug_vllm_ascend_2083_caching_off_publishes_nothing() -> None:
    """Blocks were filed although caching was off, and the next holder stumbled over the hash."""
    manager = make_manager(caching=False)
    admit(manager, request_for(manager, "a", TOKENS[:12]))
    assert manager.block_pool.cached_blocks == {}
    assert all(block.block_hash is None for block in manager.block_pool.blocks)


@pytest.mark.history("vllm#18957")
def test_r19_a_lookup_changes_nothing() -> None:
    """A tracker of cached tokens went stale when the scheduling after the lookup failed."""
    manager = make_manager()
    first = request_for(manager, "a", TOKENS[:9])
    admit(manager, first)
    manager.free(first)
    second = request_for(manager, "b", TOKENS[:9])
    before = snapshot(manager)
    assert manager.get_computed_blocks(second) == manager.get_computed_blocks(second)
    assert snapshot(manager) == before and second.num_computed_tokens == 0
    assert manager.prefix_cache_stats == PrefixCacheStats()


def test_r27_nothing_to_allocate_is_an_error() -> None:
    manager = make_manager()
    for num_new in (0, -1):
        with pytest.raises(ValueError, match=f"num_new_tokens is {num_new}; it must be at least"):
            manager.allocate_slots(request_for(manager, "a", 3), num_new)
    assert manager.req_to_blocks == {}


@pytest.mark.history("vllm#11562", "vllm#11565")
def test_bug_vllm_11565_a_failed_allocation_changes_nothing() -> None:
    """Hits were touched before the free blocks were counted, so a refusal leaked references.

    7 blocks: "a" held 1 and 2, "big" holds 3 to 6. "c" hits 1 and 2 and needs two more; only
    block 7 is free besides.
    """
    manager = make_manager()
    first = request_for(manager, "a", TOKENS[:8])
    admit(manager, first)
    admit(manager, request_for(manager, "big", 16))
    manager.free(first)
    request = request_for(manager, "c", TOKENS[:16])
    hits, num_hits = manager.get_computed_blocks(request)
    assert num_hits == 8
    before = snapshot(manager)
    assert manager.allocate_slots(request, 8, num_hits, hits) is None
    assert snapshot(manager) == before
    assert "c" not in manager.req_to_blocks and "c" not in manager.num_cached_blocks


@pytest.mark.history("vllm#11310", "ATOM#902")
def test_bug_vllm_11310_a_free_hit_uses_up_a_free_block() -> None:
    """3 free blocks, two of them hits; a request of 4 blocks needs 2 new ones: refused.

    Hits in the free queue were taken for granted; after touching them the pool was short.
    """
    manager = make_manager(blocks=3)
    first = request_for(manager, "a", TOKENS[:8])
    admit(manager, first)
    manager.free(first)
    assert manager.num_free_blocks == 3
    too_long = request_for(manager, "b", TOKENS[:16])
    hits, num_hits = manager.get_computed_blocks(too_long)
    assert num_hits == 8
    assert manager.allocate_slots(too_long, 8, num_hits, hits) is None
    fits = request_for(manager, "c", TOKENS[:12])
    hits, num_hits = manager.get_computed_blocks(fits)
    blocks = manager.allocate_slots(fits, 4, num_hits, hits)
    assert blocks is not None and blocks.get_block_ids() == [3]
    assert manager.get_block_ids("c") == [1, 2, 3] and manager.num_free_blocks == 0


def test_r27_a_hit_in_use_costs_nothing() -> None:
    manager = make_manager(blocks=3)
    admit(manager, request_for(manager, "a", TOKENS[:8]))
    second = request_for(manager, "b", TOKENS[:9])
    hits, num_hits = manager.get_computed_blocks(second)
    assert manager.allocate_slots(second, 1, num_hits, hits) is not None
    assert manager.get_block_ids("b") == [1, 2, 3]
    assert [b.ref_cnt for b in manager.block_pool.blocks[1:]] == [2, 2, 1]


def test_r27_full_sequence_must_fit() -> None:
    """7 blocks; 32 tokens need 8. The first chunk of 4 would fit, the whole never."""
    manager = make_manager()
    request = request_for(manager, "a", 32)
    assert manager.allocate_slots(request, 4, full_sequence_must_fit=True) is None
    assert manager.req_to_blocks == {}
    blocks = manager.allocate_slots(request, 4)
    assert blocks is not None and blocks.get_block_ids() == [1]


def test_r27_full_sequence_counts_hits_once() -> None:
    """7 blocks, 2 of them free hits: a sequence of exactly 7 blocks fits, of 8 it does not."""
    manager = make_manager()
    first = request_for(manager, "a", TOKENS[:8])
    admit(manager, first)
    manager.free(first)
    for num_tokens, fits in ((29, False), (28, True)):
        request = request_for(manager, f"b{num_tokens}", TOKENS[:num_tokens])
        hits, num_hits = manager.get_computed_blocks(request)
        assert num_hits == 8
        blocks = manager.allocate_slots(request, 1, num_hits, hits, full_sequence_must_fit=True)
        assert (blocks is not None) == fits
    assert manager.get_block_ids("b28") == [1, 2, 3], "only the chunk is allocated"


def test_r27_slots_end_at_max_model_len() -> None:
    """Room for 10 tokens: 8 scheduled and 6 of lookahead need 3 blocks, not 4."""
    manager = make_manager(max_model_len=10)
    request = request_for(manager, "a", 8)
    blocks = manager.allocate_slots(request, 8, num_lookahead_tokens=6)
    assert blocks is not None and len(blocks.get_block_ids()) == 3
    longer = request_for(manager, "b", 20)
    blocks = manager.allocate_slots(longer, 1, full_sequence_must_fit=True)
    assert blocks is not None


def test_r27_lookahead_slots_are_used_up_before_new_ones_are_taken() -> None:
    """Prompt 4, lookahead 2: 2 blocks. The next token and its lookahead fit into them."""
    manager = make_manager()
    request = request_for(manager, "a", 4)
    blocks = manager.allocate_slots(request, 4, num_lookahead_tokens=2)
    assert blocks is not None and blocks.get_block_ids() == [1, 2]
    request.num_computed_tokens = 4
    request.append_output_token_ids(1)
    blocks = manager.allocate_slots(request, 1, num_lookahead_tokens=2)
    assert blocks is not None and blocks.get_block_ids() == []
    request.num_computed_tokens = 5
    request.append_output_token_ids([2, 3])
    blocks = manager.allocate_slots(request, 2, num_lookahead_tokens=2)
    assert blocks is not None and blocks.get_block_ids() == [3]


@pytest.mark.history("vllm#18668")
def test_r29_bug_vllm_18668_drafts_are_not_published() -> None:
    """5 certain tokens and 4 drafts fill 2 blocks; only the first is findable.

    Drafts were counted as certain, so blocks with tokens that were rejected later were found.
    """
    manager = make_manager()
    request = request_for(manager, "a", TOKENS[:5])
    request.spec_token_ids = TOKENS[5:9]
    assert manager.allocate_slots(request, 9) is not None
    assert manager.num_cached_blocks["a"] == 1
    assert list(manager.block_pool.cached_blocks) == request.block_hashes[:1]


def test_r28_hits_are_touched_before_new_blocks_are_taken() -> None:
    """Free queue 3 2 1, where 1 and 2 are hits: the new block is 3, never one of the hits."""
    manager = make_manager(blocks=3)
    first = request_for(manager, "a", TOKENS[:9])
    admit(manager, first)
    manager.free(first)
    assert free_ids(manager) == [3, 2, 1]
    assert admit(manager, request_for(manager, "b", TOKENS[:9])) == [1, 2, 3]
    other = make_manager(blocks=3)
    second = request_for(other, "a", TOKENS[:4])
    admit(other, second)
    third = request_for(other, "x", 8)
    admit(other, third)
    other.free(second)
    other.free(third)
    assert free_ids(other) == [1, 3, 2]
    assert admit(other, request_for(other, "b", TOKENS[:12])) == [1, 3, 2]


def test_r28_new_blocks_lose_what_they_held() -> None:
    manager = make_manager(blocks=3)
    first = request_for(manager, "a", TOKENS[:12])
    admit(manager, first)
    manager.free(first)
    admit(manager, request_for(manager, "x", 8))
    assert free_ids(manager) == [1]
    _, num_hits = manager.get_computed_blocks(request_for(manager, "b", TOKENS[:12]))
    assert num_hits == 4, "the tail was reused first"


def test_r29_blocks_are_findable_as_soon_as_they_are_planned() -> None:
    manager = make_manager()
    request = request_for(manager, "a", TOKENS[:9])
    assert manager.allocate_slots(request, 6) is not None
    assert request.num_computed_tokens == 0
    assert manager.get_computed_blocks(request_for(manager, "b", TOKENS[:9]))[1] == 4
    request.num_computed_tokens = 6
    assert manager.allocate_slots(request, 3) is not None
    assert manager.get_computed_blocks(request_for(manager, "b", TOKENS[:9]))[1] == 8


def test_r30_equal_blocks_that_were_filled_side_by_side_both_stay() -> None:
    """Prompts of exactly one block never hit, so each fills its own."""
    manager = make_manager()
    assert admit(manager, request_for(manager, "a", TOKENS[:4])) == [1]
    assert admit(manager, request_for(manager, "b", TOKENS[:4])) == [2]
    (blocks,) = manager.block_pool.cached_blocks.values()
    assert list(blocks) == [1, 2]


def test_r31_output_is_found_too() -> None:
    """Prompt 5 and 4 tokens of output, 8 of the 9 computed: a prompt of all nine hits 8."""
    manager = make_manager()
    request = request_for(manager, "a", TOKENS[:5])
    admit(manager, request)
    for token in TOKENS[5:8]:
        assert manager.get_computed_blocks(request_for(manager, "b", TOKENS[:9]))[1] == 4
        request.append_output_token_ids(token)
        assert manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1
    request.append_output_token_ids(TOKENS[8])
    assert manager.get_computed_blocks(request_for(manager, "b", TOKENS[:9]))[1] == 8


def test_r32_tables_are_freed_from_the_tail() -> None:
    """7 usable blocks, 1, 2 and 3 freed: 4 5 6 7 3 2 1."""
    manager = make_manager()
    request = request_for(manager, "a", 12)
    admit(manager, request)
    manager.free(request)
    assert free_ids(manager) == [4, 5, 6, 7, 3, 2, 1]
    assert manager.req_to_blocks == {} and manager.num_cached_blocks == {}
    manager.free(request)
    assert manager.num_free_blocks == 7, "freeing twice is harmless"


def test_r33_reset_prefix_cache_only_when_idle() -> None:
    manager = make_manager()
    request = request_for(manager, "a", TOKENS[:8])
    admit(manager, request)
    manager.prefix_cache_stats.record(8, 4)
    assert not manager.reset_prefix_cache() and manager.prefix_cache_stats.hits == 4
    manager.free(request)
    assert manager.reset_prefix_cache() and manager.prefix_cache_stats.hits == 0
    assert manager.get_computed_blocks(request_for(manager, "b", TOKENS[:9]))[1] == 0


def test_r35_every_block_can_be_used() -> None:
    """No watermark: a request of 7 blocks fits a pool of 7."""
    manager = make_manager()
    assert manager.capacity_in_tokens == 28
    assert len(admit(manager, request_for(manager, "a", 28))) == 7
    assert manager.num_free_blocks == 0 and manager.usage == 1.0


def test_salts_and_adapters_do_not_share() -> None:
    manager = make_manager()
    admit(manager, request_for(manager, "a", TOKENS[:9], cache_salt="x", lora_name="l"))
    for salt, lora, num_hits in (("x", "l", 8), ("y", "l", 0), ("x", None, 0), (None, None, 0)):
        request = request_for(manager, "b", TOKENS[:9], cache_salt=salt, lora_name=lora)
        assert manager.get_computed_blocks(request)[1] == num_hits


def test_uncache_takes_blocks_back_from_the_first_uncomputed_token() -> None:
    """12 tokens planned, 6 of them valid: block 0 stays findable, 1 and 2 do not."""
    manager = make_manager()
    request = request_for(manager, "a", TOKENS[:13])
    admit(manager, request, 12)
    assert manager.num_cached_blocks["a"] == 3
    manager.uncache_blocks(request, 6)
    assert manager.num_cached_blocks["a"] == 1
    assert manager.get_computed_blocks(request_for(manager, "b", TOKENS[:13]))[1] == 4
    manager.check_integrity([request])
    manager.cache_blocks(request, 3)
    manager.check_integrity([request])
    assert manager.get_computed_blocks(request_for(manager, "b", TOKENS[:13]))[1] == 12
    manager.uncache_blocks(request_for(manager, "unknown", 4), 0)


def test_hit_rate() -> None:
    stats = PrefixCacheStats()
    assert stats.hit_rate == 0.0
    stats.record(10, 4)
    stats.record(10, 0)
    assert (stats.requests, stats.queries, stats.hits, stats.hit_rate) == (2, 20, 4, 0.2)


@pytest.mark.parametrize("damage", ["leak", "twice", "content"])
def test_check_integrity_sees_damage(damage: str) -> None:
    manager = make_manager()
    request = request_for(manager, "a", TOKENS[:9])
    admit(manager, request)
    if damage == "leak":
        del manager.req_to_blocks["a"]
    elif damage == "twice":
        manager.req_to_blocks["a"].append(manager.req_to_blocks["a"][0])
        manager.req_to_blocks["a"][0].ref_cnt += 1
    else:
        request.block_hashes.reverse()
    with pytest.raises(AssertionError):
        manager.check_integrity([request])


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "4", None, True])
@pytest.mark.parametrize("name", ["num_gpu_blocks", "block_size", "max_model_len"])
def test_sizes_are_whole_numbers(name: str, wrong: object) -> None:
    sizes: dict[str, object] = {"num_gpu_blocks": 8, "block_size": 4, "max_model_len": 64}
    with pytest.raises(ValueError, match=f"{name} is .*; it must be (at least|a whole number)"):
        KVCacheManager(**(sizes | {name: wrong}))  # type: ignore[arg-type]


def test_caching_is_on_or_off() -> None:
    with pytest.raises(ValueError, match="enable_caching is 'no'; it must be True or False"):
        KVCacheManager(8, 4, 64, enable_caching="no")  # type: ignore[arg-type]
