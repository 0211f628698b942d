"""Block tables: which blocks hold which tokens of which request.

The manager answers one question for the scheduler, "can this request have slots for so many
more tokens?", with the new blocks or with None. It decides no policy: None means that the
scheduler must preempt a request or wait.

Source: vllm/v1/core/kv_cache_manager.py#L110-L570 (KVCacheManager) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mini_vllm.config.checks import require_at_least
from mini_vllm.core.block_hash import BlockHasher
from mini_vllm.core.block_pool import BlockPool, KVCacheBlock
from mini_vllm.request import Request


@dataclass(frozen=True)
class KVCacheBlocks:
    """Blocks on their way between manager and scheduler, which looks at their ids only."""

    blocks: list[KVCacheBlock] = field(default_factory=list)

    def get_block_ids(self) -> list[int]:
        return [block.block_id for block in self.blocks]


@dataclass
class PrefixCacheStats:
    """Tokens looked up in the prefix cache by admitted requests, and tokens found."""

    requests: int = 0
    queries: int = 0
    hits: int = 0

    def record(self, num_tokens: int, num_hits: int) -> None:
        self.requests += 1
        self.queries += num_tokens
        self.hits += num_hits

    @property
    def hit_rate(self) -> float:
        return self.hits / self.queries if self.queries else 0.0


def cdiv(a: int, b: int) -> int:
    """``a / b``, rounded up."""
    return -(-a // b)


class KVCacheManager:
    """Keeps the block table of every request that holds KV.

    Args:
        num_gpu_blocks: blocks in the pool, the null block included.
        block_size: tokens per block.
        max_model_len: no request ever needs slots for more tokens than this.
        enable_caching: whether equal prefixes share blocks.
        hash_root: see :class:`~mini_vllm.core.block_hash.BlockHasher`.

    Raises:
        ValueError: for a size below its least, or an argument of another kind.
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        block_size: int,
        max_model_len: int,
        enable_caching: bool = True,
        hash_root: bytes | None = None,
    ) -> None:
        require_at_least("block_size", block_size, 1, "16 is usual")
        require_at_least("max_model_len", max_model_len, 1, "raise it")
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.block_pool = BlockPool(num_gpu_blocks, enable_caching)
        self.block_hasher = BlockHasher(block_size, hash_root)
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        """The block tables: token ``i`` of a request lives in its block ``i // block_size``."""
        self.num_cached_blocks: dict[str, int] = {}
        """How many leading blocks of a table are findable by their hashes."""
        self.prefix_cache_stats = PrefixCacheStats()
        self._no_blocks = KVCacheBlocks()

    @property
    def num_free_blocks(self) -> int:
        return self.block_pool.num_free_blocks

    @property
    def usage(self) -> float:
        return self.block_pool.usage

    @property
    def capacity_in_tokens(self) -> int:
        """Slots in the whole pool: a longer sequence can never be held."""
        return self.block_pool.num_usable_blocks * self.block_size

    def get_block_ids(self, request_id: str) -> list[int]:
        """The block table of a request, as ids; empty if it holds none."""
        return [block.block_id for block in self.req_to_blocks.get(request_id, ())]

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Look up the longest prefix of ``request`` that is in the cache.

        The last token is never taken from the cache, even if its block is there: its logits
        are needed to sample the next one. So at most ``num_tokens - 1`` tokens can hit, and
        since hits are whole blocks, a fully cached prompt computes its last block again::

            8 tokens, block_size 4, both blocks cached:  | hit | computed again |

        Returns:
            The blocks found, in order, and the number of tokens they hold. Nothing is changed,
            so a lookup may be repeated any number of times.

        Source: vllm/v1/core/kv_cache_manager.py#L194-L234 (KVCacheManager.get_computed_blocks)
        @ v0.22.1
        """
        # TODO 02.5
        raise NotImplementedError(
            "TODO 02.5: write KVCacheManager.get_computed_blocks in labs/02-kv-cache/kv_cache_manager.py"
            " (phase 02, 02-mini-build.md#task-5)"
        )

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
    ) -> KVCacheBlocks | None:
        """Give ``request`` slots for ``num_new_tokens`` more tokens.

        ::

            | computed | new computed |     new     | lookahead |      in tokens
            |          | (cache hits) | (scheduled) | (drafts)  |
            |  held    |   touched    |       allocated         |      their blocks
            |        findable by hash (full blocks) |                  after the call

        Args:
            request: its ``num_computed_tokens`` tokens have their slots already.
            num_new_tokens: tokens scheduled for computation, at least 1.
            num_new_computed_tokens: tokens that :meth:`get_computed_blocks` found.
            new_computed_blocks: the blocks that it found.
            num_lookahead_tokens: further slots for draft tokens of the next step.
            full_sequence_must_fit: refuse unless the blocks of *all* its tokens are free now.
            reserved_blocks: refuse unless so many blocks stay free (a ``watermark``).

        Returns:
            The newly allocated blocks (possibly none: the last block may have room), or
            **None if there are too few free blocks. Nothing at all is changed then.**

        Raises:
            ValueError: if ``num_new_tokens`` is below 1.

        Full blocks become findable at once, before the model has run: within a step every layer
        writes the whole batch's keys and values before it reads any. Draft tokens are left
        out, since they may be rejected.

        A call costs what it adds, however many blocks the request holds and the pool has.

        Source: vllm/v1/core/kv_cache_manager.py#L236-L427 (KVCacheManager.allocate_slots)
        @ v0.22.1
        """
        # TODO 02.6
        raise NotImplementedError(
            "TODO 02.6: write KVCacheManager.allocate_slots in labs/02-kv-cache/kv_cache_manager.py"
            " (phase 02, 02-mini-build.md#task-6)"
        )

    def _extend_table(
        self, request_id: str, hits: list[KVCacheBlock], num_new_blocks: int
    ) -> KVCacheBlocks:
        """Append hits, then new blocks. The hits are touched first, or they might be given out."""
        # TODO 02.6
        raise NotImplementedError(
            "TODO 02.6: write KVCacheManager._extend_table in labs/02-kv-cache/kv_cache_manager.py"
            " (phase 02, 02-mini-build.md#task-6)"
        )

    def cache_blocks(self, request: Request, num_full_blocks: int) -> None:
        """Make the first ``num_full_blocks`` blocks findable, each of them once.

        Source: vllm/v1/core/single_type_kv_cache_manager.py#L285-L321
        (SingleTypeKVCacheManager.cache_blocks) @ v0.22.1
        """
        # TODO 02.5
        raise NotImplementedError(
            "TODO 02.5: write KVCacheManager.cache_blocks in labs/02-kv-cache/kv_cache_manager.py"
            " (phase 02, 02-mini-build.md#task-5)"
        )

    def cache_tokens(self, request: Request, num_tokens: int) -> None:
        """Make the blocks findable that the first ``num_tokens`` tokens fill."""
        num_full_blocks = num_tokens // self.block_size
        if self.enable_caching and num_full_blocks > self.num_cached_blocks[request.request_id]:
            self.cache_blocks(request, num_full_blocks)

    def uncache_blocks(self, request: Request, num_valid_tokens: int) -> None:
        """Take the blocks after the first ``num_valid_tokens`` tokens out of the cache again.

        They were made findable before they were computed, and the computation has failed.
        """
        # TODO 02.7
        raise NotImplementedError(
            "TODO 02.7: write KVCacheManager.uncache_blocks in labs/02-kv-cache/kv_cache_manager.py"
            " (phase 02, 02-mini-build.md#task-7)"
        )

    def free(self, request: Request) -> None:
        """Take all blocks from ``request``; a request that holds none is left as it is.

        The table is freed from its end, so that its tail is reused first and the prefix, the
        part most likely to be shared, stays findable longest.

        Source: vllm/v1/core/kv_cache_manager.py#L429-L437 (KVCacheManager.free) @ v0.22.1
        """
        # TODO 02.7
        raise NotImplementedError(
            "TODO 02.7: write KVCacheManager.free in labs/02-kv-cache/kv_cache_manager.py"
            " (phase 02, 02-mini-build.md#task-7)"
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached contents; False, with nothing done, while any block is in use."""
        if not self.block_pool.reset_prefix_cache():
            return False
        self.prefix_cache_stats = PrefixCacheStats()
        return True

    def check_integrity(self, requests: Iterable[Request] = ()) -> None:
        """Raise AssertionError unless tables, reference counts and cache agree.

        Args:
            requests: those that may hold blocks, to check their hashes as well.
        """
        self._check_holders({i: self.get_block_ids(i) for i in self.req_to_blocks})
        for request in requests:
            table = self.req_to_blocks.get(request.request_id, [])
            for index in range(self.num_cached_blocks.get(request.request_id, 0)):
                # None: another request that shared the block has failed (uncache_blocks).
                assert table[index].block_hash in (None, request.block_hashes[index]), (
                    f"block {index} of {request.request_id} has the hash of other contents"
                )

    def _check_holders(self, block_ids: Mapping[str, Sequence[int]]) -> None:
        """Raise AssertionError unless the pool counts each block once for each request with it."""
        self.block_pool.check_integrity()
        holders = [0] * self.block_pool.num_gpu_blocks
        for request_id, ids in block_ids.items():
            assert len(set(ids)) == len(ids), f"{request_id} holds a block twice: {ids}"
            for block_id in ids:
                holders[block_id] += 1
        for block in self.block_pool.blocks[1:]:
            assert block.ref_cnt == holders[block.block_id], (
                f"{block} is in {holders[block.block_id]} tables"
            )
