"""Change request 1: windows are kept at multiples of `retention`."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.group_managers import WindowManager
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


def window_manager(retention: int | None) -> Any:
    spec = GroupSpec("sliding_window", 4, window=8)
    manager: Any = WindowManager(spec, 0, BlockPool(40, True), 4, 64, 256)
    if retention is not None:
        manager.retention = retention
    return manager


def published(manager: Any) -> tuple[list[int], int]:
    """Blocks of 32 tokens that have a name, and tokens that hit of a prompt of 36."""
    request = Request("ana", list(range(36)), SamplingParams(max_tokens=1))
    request.block_hashes = [bytes([index]) * 32 for index in range(9)]
    manager.add_hits("ana", [], 0)
    manager.add_blocks("ana", 32)
    manager.publish(request, 32, 4)
    names = [i for i, b in enumerate(manager.req_to_blocks["ana"]) if b.block_hash is not None]
    return names, 4 * len(manager.find_hit(request, 30, [0], 4)[0])


def test_change_1_two_before_each_multiple() -> None:
    """A window of 8 in blocks of 4: two blocks before 16, and two before 32."""
    names, hit = published(window_manager(16))
    expect(names, [2, 3, 6, 7], at="retention 16: blocks with a name")
    expect(hit, 16, at="retention 16, of at most 30 tokens: tokens that hit")


def test_change_1_none_is_as_before() -> None:
    """A manager without an interval keeps every block."""
    expect(published(window_manager(None)), (list(range(8)), 28), at="no retention: names, hit")
    expect(published(window_manager(0)), (list(range(8)), 28), at="retention 0: names, hit")


def test_change_1_a_short_interval_keeps_all() -> None:
    """Every block is one of the two before some multiple of 8, or of 4."""
    for retention in (4, 8):
        expect(published(window_manager(retention))[0], list(range(8)), at=f"every {retention}")
