"""Task 02.5: the manager publishes the prefix of a request, and finds it for the next one."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def published(kv: Any, manager: Any, length: int, name: str = "ana") -> Any:
    """A request of the conversation whose full blocks are all held and findable."""
    request = kv.request(name, length, manager)
    table = kv.seat(manager, request, -(-length // 4))
    full = length // 4
    manager.block_pool.cache_full_blocks(table[:full], request.block_hashes[:full])
    manager.num_cached_blocks[name] = full
    return request


def test_02_5_full_blocks_are_published_once(kv: Any) -> None:
    """Each call goes on where the last one stopped."""
    manager = kv.manager()
    ana = kv.request("ana", 13, manager)
    table = kv.seat(manager, ana, 4)
    manager.cache_blocks(ana, 1)
    names = [block.block_hash for block in table]
    at = "ana's 4 blocks; the first one is published"
    expect(names, [ana.block_hashes[0], None, None, None], at=at)
    manager.cache_blocks(ana, 3)
    names = [block.block_hash for block in table]
    expect(names, [*ana.block_hashes, None], at="ana's 4 blocks; then the first three")
    expect(manager.num_cached_blocks["ana"], 3, at="num_cached_blocks of ana")
    manager.block_pool.check_integrity()


def test_02_5_hits_that_a_table_began_with_are_not_published_again(kv: Any) -> None:
    """ben's first two blocks were found in the cache; only the third is news."""
    manager = kv.manager()
    published(kv, manager, 8)
    ben = kv.request("ben", 12, manager)
    shared = manager.req_to_blocks["ana"][:2]
    manager.block_pool.touch(shared)
    manager.req_to_blocks["ben"] = [*shared, *manager.block_pool.get_new_blocks(1)]
    manager.num_cached_blocks["ben"] = 2
    manager.cache_blocks(ben, 3)
    found = [list(manager.block_pool.cached_blocks[h]) for h in ben.block_hashes]
    expect(found, [[1], [2], [3]], at="who is filed under the three hashes of ben: blocks 1, 2, 3")


def test_02_5_the_longest_prefix_is_found(kv: Any) -> None:
    """Blocks in order, and the number of tokens that they hold."""
    manager = kv.manager()
    published(kv, manager, 12)
    ben = kv.request("ben", kv.CHAT[:8] + kv.others(5), manager)
    blocks, num_tokens = manager.get_computed_blocks(ben)
    at = "ana published 12 tokens in blocks 1, 2, 3; ben's prompt begins with 8 of them"
    expect(blocks.get_block_ids(), [1, 2], at=at)
    expect(num_tokens, 8, at=f"{at}: tokens found")


def test_02_5_the_first_miss_ends_the_search(kv: Any) -> None:
    """A block after a gap is of no use: what comes before it must be computed in any case."""
    manager = kv.manager()
    published(kv, manager, 13)
    manager.block_pool.evict(manager.req_to_blocks["ana"][1])
    blocks, num_tokens = manager.get_computed_blocks(kv.request("ben", 13, manager))
    at = "of ana's blocks 1, 2, 3 the second is no longer findable; ben has the same prompt"
    expect(blocks.get_block_ids(), [1], at=at)
    expect(num_tokens, 4, at=f"{at}: tokens found")


def test_02_5_the_last_token_is_never_a_hit(kv: Any) -> None:
    """Its logits are needed to sample. A prompt of 8 that is all there computes 4 again."""
    manager = kv.manager()
    published(kv, manager, 12)
    lengths = [4, 5, 8, 9, 12]
    found = [
        manager.get_computed_blocks(kv.request("ben", length, manager))[1] for length in lengths
    ]
    at = f"tokens found for prompts of {lengths}; the first 12 of the conversation are published"
    expect(found, [0, 4, 4, 8, 8], at=at)


def test_02_5_output_is_found_too(kv: Any) -> None:
    """A preempted request comes back with its output, and hits what it computed itself."""
    manager = kv.manager()
    published(kv, manager, 12)
    ben = kv.request("ben", 5, manager)
    ben.append_output_token_ids(kv.CHAT[5:10])
    blocks, num_tokens = manager.get_computed_blocks(ben)
    at = "ben comes back with 5 tokens of prompt and 5 of output; all are published"
    expect(blocks.get_block_ids(), [1, 2], at=at)
    expect(num_tokens, 8, at=f"{at}: tokens found")


def test_02_5_some_requests_must_not_look(kv: Any) -> None:
    """With caching off nothing is found; prompt logprobs need every token computed."""
    manager = kv.manager()
    published(kv, manager, 12)
    ben = kv.request("ben", 12, manager, prompt_logprobs=1)
    blocks, num_tokens = manager.get_computed_blocks(ben)
    expect((blocks.get_block_ids(), num_tokens), ([], 0), at="ben wants prompt_logprobs")
    off = kv.manager(caching=False)
    cleo = kv.request("cleo", 12, manager)  # hashed, as another part of an engine might do
    ana = kv.request("ana", 12, manager)
    off.block_pool.cache_full_blocks(kv.seat(off, ana, 3), ana.block_hashes)
    blocks, num_tokens = off.get_computed_blocks(cleo)
    expect((blocks.get_block_ids(), num_tokens), ([], 0), at="enable_caching is False")


def test_02_5_a_lookup_changes_nothing(kv: Any) -> None:
    """The scheduler may look every step until there is room; a look changes no count."""
    manager = kv.manager()
    kv.leave(manager, published(kv, manager, 12))
    before = kv.snapshot(manager)
    ben = kv.request("ben", 13, manager)
    first = manager.get_computed_blocks(ben)
    second = manager.get_computed_blocks(ben)
    for name, value in kv.snapshot(manager).items():
        expect(value, before[name], at=f"{name} after two lookups against before")
    expect(second[0].get_block_ids(), first[0].get_block_ids(), at="the second lookup")
