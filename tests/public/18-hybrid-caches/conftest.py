"""Builders for the tests of phase 18. Blocks hold 4 tokens; block 0 is the null block, so the first
one given out is block 1. Tables are shown as numbers of blocks: [0, 5] is null, then block 5."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.block_hash import BlockHasher
from mini_vllm.core.block_pool import BlockPool, KVCacheBlock
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.finish_step import finish_step
from mini_vllm.core.group_managers import MANAGERS
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.scheduler_output import ModelRunnerOutput
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

FULL = GroupSpec("full", 4)
STATE = GroupSpec("mamba", 4, mode="align")


def window(size: int, block_size: int = 4) -> GroupSpec:
    """Layers that read the last `size` tokens."""
    return GroupSpec("sliding_window", block_size, window=size)


def local(chunk: int, block_size: int = 4) -> GroupSpec:
    """Layers that read their token's chunk."""
    return GroupSpec("chunked_local", block_size, chunk=chunk)


def new_manager(spec: GroupSpec, blocks: int = 12, group_id: int = 0, hash_size: int = 4) -> Any:
    """The manager of one group, over a pool of its own with so many usable blocks."""
    pool = BlockPool(blocks + 1)
    return MANAGERS[spec.kind](spec, group_id, pool, hash_size, 64, 64)


def new_request(name: str, tokens: int, hash_size: int = 4) -> Request:
    """A request whose prompt is 0, 1, 2, ..., with hashes of so many tokens each."""
    request = Request(name, range(tokens), SamplingParams(temperature=0.0), arrival_time=0.0)
    request.set_block_hasher(BlockHasher(hash_size, b"root"))
    return request


def name_of(request: Request, index: int, group_id: int, hashes: int = 1) -> bytes:
    """What block `index` of a group is called, without the function of task 18.4."""
    own = request.block_hashes[index * hashes : (index + 1) * hashes]
    return b"".join(own) + group_id.to_bytes(4, "big")


def file_blocks(manager: Any, request: Request, places: Mapping[int, Sequence[int]]) -> None:
    """Make blocks findable, and free: of each group, those at some places of the request's table.

    Block ids count up in the order in which places are given, from 1 on."""
    for group_id, own in places.items():
        for index in own:
            (block,) = manager.pool.get_new_blocks(1)
            name = name_of(request, index, group_id, manager.hashes_per_block)
            manager.pool.cache_full_blocks([block], [name])
            manager.pool.free_blocks([block])


def seat(manager: Any, name: str, blocks: int, nulls: int = 0) -> list[KVCacheBlock]:
    """Give a request a table: so many null blocks, then blocks of the pool."""
    table = [manager.null_block] * nulls + manager.pool.get_new_blocks(blocks)
    manager.req_to_blocks[name] = table
    manager.num_cached_blocks[name] = 0
    return list(table)


def ids(blocks: Iterable[KVCacheBlock]) -> list[int]:
    """The numbers of some blocks, in order."""
    return [block.block_id for block in blocks]


def free_ids(manager: Any) -> list[int]:
    """The free queue, next block to be given out first."""
    return ids(manager.pool.free_block_queue)


class Kind:
    """Stands for the manager of a group; it notes in `log` what it is asked.

    Args:
        accepts: the lengths at which it can go on.
        wanted: free blocks that it says it needs.
    """

    def __init__(
        self, name: str, block_size: int = 4, accepts: Iterable[int] = (), wanted: int = 0
    ) -> None:
        self.name, self.block_size, self.wanted = name, block_size, wanted
        self.accepts = sorted({0, *accepts})
        self.log: list[tuple[Any, ...]] = []

    def find_hit(
        self, request: Request, max_length: int, group_ids: Sequence[int], alignment: int
    ) -> list[list[KVCacheBlock]]:
        self.log.append(("find_hit", max_length, list(group_ids), alignment))
        length = max(length for length in self.accepts if length <= max_length)
        number = length // self.block_size
        return [[KVCacheBlock(100 * (g + 1) + i) for i in range(number)] for g in group_ids]

    def release_skipped(self, request_id: str, num_computed_tokens: int) -> None:
        self.log.append((self.name, "release_skipped", request_id, num_computed_tokens))

    def num_wanted_blocks(self, *args: Any, **keys: Any) -> int:
        self.log.append((self.name, "num_wanted_blocks"))
        return self.wanted

    def add_hits(self, request_id: str, hits: Sequence[KVCacheBlock], computed: int) -> None:
        self.log.append((self.name, "add_hits", request_id, ids(hits), computed))

    def add_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        self.log.append((self.name, "add_blocks", request_id, num_tokens))
        return [KVCacheBlock(num_tokens)]

    def publish(self, request: Request, num_tokens: int, alignment: int) -> None:
        self.log.append((self.name, "publish", request.request_id, num_tokens, alignment))


def of_kinds(
    specs: Sequence[GroupSpec], kinds: Sequence[Kind], blocks: int = 12, caching: bool = True
) -> HybridKVCacheManager:
    """The manager of several groups whose own managers are stand-ins."""
    manager = HybridKVCacheManager(specs, blocks + 1, 64, 64, caching, b"root")
    manager.managers = list(kinds)  # type: ignore[arg-type]
    return manager


def new_scheduler(*groups: GroupSpec, blocks: int = 40, budget: int = 64) -> Any:
    """The course's scheduler over so many usable blocks."""
    return make_scheduler(
        SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=4, max_model_len=64),
        CacheConfig(block_size=groups[0].block_size, num_gpu_blocks=blocks + 1),
        groups=groups,
    )


def add(scheduler: Any, name: str, tokens: int, max_tokens: int = 30) -> None:
    """A request whose prompt is 0, 1, 2, ..."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    scheduler.add_request(Request(name, range(tokens), params))


def step(scheduler: Any) -> Any:
    """One step; each request whose tokens are all computed gets token 7. Returns the plan."""
    plan = scheduler.schedule()
    due = {
        name: [7]
        for name in plan.num_scheduled_tokens
        if scheduler.requests[name].num_computed_tokens >= scheduler.requests[name].num_tokens
    }
    finish_step(scheduler, plan, ModelRunnerOutput(due))
    scheduler.check_integrity()
    return plan


def tables(scheduler: Any, name: str) -> list[list[int]]:
    """The tables of a request, group by group."""
    return scheduler.kv_cache_manager.get_group_block_ids(name)


def random(*shape: int, seed: int = 0, dtype: str = "float64") -> Tensor:
    """Numbers around 0, the same in each run."""
    import torch

    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(getattr(torch, dtype))


def near(yours: Any, right: Any, at: str, atol: float = 1e-9) -> None:
    """Fail unless a tensor is nearly another one, of the same shape and without NaN."""
    from labkit.testing import expect

    expect(list(yours.shape), list(right.shape), at=f"{at}: shape")
    off = (yours.double() - right.double()).abs()
    worst = float(off.nan_to_num(nan=float("inf")).max())
    if not worst <= atol:
        place = int(off.nan_to_num(nan=float("inf")).argmax())
        mine, theirs = (round(float(x.flatten()[place]), 6) for x in (yours, right))
        expect(mine, theirs, at=f"{at}: number {place}, counted through the whole tensor")


@pytest.fixture
def hy() -> SimpleNamespace:
    """The builders above, by name."""
    names: dict[str, Callable[..., Any] | Any] = {
        "FULL": FULL,
        "STATE": STATE,
        "window": window,
        "local": local,
        "manager": new_manager,
        "request": new_request,
        "name_of": name_of,
        "file": file_blocks,
        "seat": seat,
        "ids": ids,
        "free": free_ids,
        "Kind": Kind,
        "of_kinds": of_kinds,
        "scheduler": new_scheduler,
        "add": add,
        "step": step,
        "tables": tables,
        "random": random,
        "near": near,
    }
    return SimpleNamespace(**names)
