"""What the hidden tests of phase 18 build in the child: managers, requests, named blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.process.worker import Program

GROUPS = "mini_vllm.core.cache_groups:"
MANAGERS = "mini_vllm.core.group_managers:"
HYBRID = "mini_vllm.core.hybrid_kv_cache_manager:"
CLASSES = {
    "full": "GroupManager",
    "sliding_window": "WindowManager",
    "chunked_local": "LocalManager",
    "mamba": "StateManager",
}
Spec = dict[str, Any]


def spec(p: Program, fields: Spec) -> Any:
    return p.new(f"{GROUPS}GroupSpec", **fields)


def manager(p: Program, fields: Spec, blocks: int = 40, group_id: int = 0, hashed: int = 0) -> Any:
    """The manager of one group, over a pool of its own with so many usable blocks."""
    pool = p.new("mini_vllm.core.block_pool:BlockPool", blocks + 1)
    cls = f"{MANAGERS}{CLASSES[fields['kind']]}"
    hashed = hashed or fields["block_size"]
    return p.new(cls, spec(p, fields), group_id, pool, hashed, 64, 4096)


def hybrid(p: Program, groups: Sequence[Spec], blocks: int = 60, caching: bool = True) -> Any:
    made = [spec(p, fields) for fields in groups]
    return p.new(f"{HYBRID}HybridKVCacheManager", made, blocks + 1, 4096, 64, caching, b"root")


def request(p: Program, name: str, tokens: int, hasher: Any = None, size: int = 4) -> Any:
    made = p.new("mini_vllm.request:Request", name, list(range(tokens)))
    if hasher is None:
        hasher = p.new("mini_vllm.core.block_hash:BlockHasher", size, b"root")
    made.set_block_hasher(hasher)
    return made


def file_blocks(owner: Any, made: Any, places: Mapping[int, Sequence[int]]) -> None:
    """Make blocks findable, and free: of each group those at some places."""
    for group_id, own in places.items():
        for index in own:
            blocks = owner.pool.get_new_blocks(1)
            owner.pool.cache_full_blocks(blocks, [owner.key(made, index, group_id)])
            owner.pool.free_blocks(blocks)


def seat(p: Program, owner: Any, name: str, blocks: int, nulls: int = 0) -> None:
    """Give a request a table of so many null blocks, then blocks of the pool."""
    table = p.call("operator:add", [owner.null_block] * nulls, owner.pool.get_new_blocks(blocks))
    p.call("operator:setitem", owner.req_to_blocks, name, table)
    p.call("operator:setitem", owner.num_cached_blocks, name, 0)


def see_pool(p: Program, pool: Any) -> None:
    """The free queue, and the holders of blocks."""
    p.see_each(p.call("builtins:list", pool.free_block_queue), "block_id")
    p.see_each(pool.blocks, "ref_cnt")


def tensor(p: Program, values: Any, dtype: str = "float64") -> Any:
    return p.call("torch:tensor", values.tolist(), dtype=p.name(f"torch:{dtype}"))


@pytest.fixture(scope="session")
def hy() -> SimpleNamespace:
    return SimpleNamespace(
        GROUPS=GROUPS,
        HYBRID=HYBRID,
        spec=spec,
        manager=manager,
        hybrid=hybrid,
        request=request,
        file=file_blocks,
        seat=seat,
        see_pool=see_pool,
        tensor=tensor,
    )
