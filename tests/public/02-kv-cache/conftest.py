"""Builders for the tests of phase 02. The story: a small chat service; requests bear the names of
customers. Blocks hold 4 tokens; block 0 is the null block, so the first one given out is block 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm.core.block_hash import BlockHasher
from mini_vllm.core.block_pool import BlockPool, FreeKVCacheBlockQueue, KVCacheBlock
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

CHAT = list(range(100, 140))
"""A conversation of 40 tokens; prompts are its beginnings, unless they say otherwise."""


def new_queue(number: int) -> tuple[FreeKVCacheBlockQueue, list[KVCacheBlock]]:
    """A free queue of blocks 0, 1, ..., and the blocks."""
    blocks = [KVCacheBlock(i) for i in range(number)]
    return FreeKVCacheBlockQueue(blocks), blocks


def new_pool(usable: int = 7) -> BlockPool:
    """A pool with so many *usable* blocks: 1, 2, ..."""
    return BlockPool(usable + 1)


def new_manager(
    usable: int = 7, max_model_len: int = 64, caching: bool = True, block_size: int = 4
) -> KVCacheManager:
    """A manager with so many usable blocks of 4 tokens."""
    return KVCacheManager(usable + 1, block_size, max_model_len, caching, hash_root=b"root")


def new_request(
    name: str,
    prompt: int | Sequence[int] = 8,
    manager: KVCacheManager | None = None,
    prompt_logprobs: int | None = None,
    **keys: Any,
) -> Request:
    """A request; a prompt given as a number is that many tokens of the one conversation.

    With a manager whose caching is on, its blocks are hashed, as the scheduler does it.
    """
    if isinstance(prompt, int):
        prompt = CHAT[:prompt]
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=prompt_logprobs)
    request = Request(name, prompt, sampling, arrival_time=0.0, **keys)
    if manager is not None and manager.enable_caching:
        request.set_block_hasher(manager.block_hasher)
    return request


def others(number: int) -> list[int]:
    """A prompt that shares nothing with the conversation."""
    return list(range(900, 900 + number))


def hashes_of(prompt: int | Sequence[int], **keys: Any) -> list[bytes]:
    """The hashes of a prompt's full blocks."""
    request = new_request("ana", prompt, **keys)
    request.set_block_hasher(BlockHasher(4, b"root"))
    return request.block_hashes


def file_by_hand(pool: BlockPool, block: KVCacheBlock, block_hash: bytes) -> None:
    """Make a block findable without the function of task 02.4."""
    block.block_hash = block_hash
    pool.cached_blocks.setdefault(block_hash, {})[block.block_id] = block


def seat(manager: KVCacheManager, request: Request, num_blocks: int) -> list[KVCacheBlock]:
    """Give a request a block table without the function of task 02.6."""
    blocks = manager.block_pool.get_new_blocks(num_blocks)
    manager.req_to_blocks[request.request_id] = blocks
    manager.num_cached_blocks[request.request_id] = 0
    return blocks


def leave(manager: KVCacheManager, request: Request) -> None:
    """Let a request go, tail first, without the function of task 02.7."""
    manager.num_cached_blocks.pop(request.request_id, None)
    table = manager.req_to_blocks.pop(request.request_id)
    manager.block_pool.free_blocks(reversed(table))


def admit(manager: KVCacheManager, request: Request, num_new: int | None = None) -> Any:
    """Look up, allocate and count as computed, as the scheduler does; what allocate_slots said."""
    hits, num_hits = manager.get_computed_blocks(request)
    num_new = request.num_tokens - num_hits if num_new is None else num_new
    blocks = manager.allocate_slots(request, num_new, num_hits, hits)
    if blocks is not None:
        request.num_computed_tokens = num_hits + num_new
    return blocks


def ids(blocks: Iterable[KVCacheBlock]) -> list[int]:
    """The numbers of some blocks, in order."""
    return [block.block_id for block in blocks]


def free_ids(owner: BlockPool | KVCacheManager) -> list[int]:
    """The free queue, next block to be given out first."""
    pool = owner if isinstance(owner, BlockPool) else owner.block_pool
    return ids(pool.free_block_queue)


def refs(owner: BlockPool | KVCacheManager) -> list[int]:
    """How many requests hold block 1, 2, ..."""
    pool = owner if isinstance(owner, BlockPool) else owner.block_pool
    return [block.ref_cnt for block in pool.blocks[1:]]


def snapshot(manager: KVCacheManager) -> dict[str, Any]:
    """All that a refused allocation and a lookup must leave as it was."""
    pool = manager.block_pool
    return {
        "free queue": free_ids(manager),
        "holders": refs(manager),
        "findable": {h.hex()[:6]: list(blocks) for h, blocks in pool.cached_blocks.items()},
        "tables": {name: manager.get_block_ids(name) for name in manager.req_to_blocks},
        "published": dict(manager.num_cached_blocks),
    }


@pytest.fixture
def kv() -> SimpleNamespace:
    """The builders above, by name."""
    return SimpleNamespace(
        CHAT=CHAT,
        queue=new_queue,
        pool=new_pool,
        manager=new_manager,
        request=new_request,
        others=others,
        hashes=hashes_of,
        file=file_by_hand,
        seat=seat,
        leave=leave,
        admit=admit,
        ids=ids,
        free=free_ids,
        refs=refs,
        snapshot=snapshot,
    )
