"""Task 15.2: evict from the tier: least recently used first."""

from __future__ import annotations

from typing import Any

from labkit.inside.cost import steps
from labkit.testing import expect
from mini_vllm.kv_transfer.offload_manager import BlockStatus


def test_15_2_touch_keeps_the_beginning_longest(lab: Any) -> None:
    """After a touch, the first block of the prompt is the youngest."""
    policy = lab.shelf(a=0, b=0, c=0, x=0)
    policy.touch([lab.key("a"), lab.key("b"), lab.key("c")])
    expect(lab.names(policy.blocks), "xcba", at="oldest first, after a touch of a, b, c")


def test_15_2_touch_passes_over_what_it_does_not_know(lab: Any) -> None:
    """A key that is not here is no error, and does not come in."""
    policy = lab.shelf(a=0, b=0)
    policy.touch([lab.key("a"), lab.key("z")])
    expect(lab.names(policy.blocks), "ba", at="oldest first, after a touch of a and an unknown")


def test_15_2_the_callers_list_stays(lab: Any) -> None:
    """The caller's list of keys is unchanged: it goes on to use it."""
    policy, asked = lab.shelf(a=0, b=0), [lab.key("a"), lab.key("b")]
    policy.touch(asked)
    expect(lab.names(asked), "ab", at="the list that was handed over, after the touch")


def test_15_2_the_oldest_go(lab: Any) -> None:
    """Eviction takes the oldest, and only as many as were asked for."""
    policy = lab.shelf(a=0, b=0, c=0)
    gone = policy.evict(2, ())
    expect(lab.names(k for k, _ in gone), "ab", at="two of a, b, c")
    expect(lab.names(policy.blocks), "c", at="what is left")


def test_15_2_used_and_protected_blocks_stay(lab: Any) -> None:
    """A block that is written, read or protected stays."""
    policy = lab.shelf(w=-1, r=1, p=0, a=0)
    gone = policy.evict(1, {lab.key("p")})
    expect(lab.names(k for k, _ in gone), "a", at="w is written, r read, p protected")


def test_15_2_all_or_nothing(lab: Any) -> None:
    """If too few blocks may be evicted, none is."""
    policy = lab.shelf(a=0, r=1)
    expect(policy.evict(2, ()), None, at="two wanted, one may go")
    expect(lab.names(policy.blocks), "ar", at="afterwards")


def test_15_2_none_wanted(lab: Any) -> None:
    """No block is evicted without need."""
    policy = lab.shelf(a=0)
    expect(policy.evict(0, ()), [], at="none wanted")
    expect(len(policy), 1, at="afterwards")


def test_15_2_the_blocks_are_gone_through_once(lab: Any) -> None:
    """Twice as many to evict cost twice as many steps, not four times as many."""

    def evict(num_blocks: int) -> int:
        blocks = {key: BlockStatus(key, 0) for key in range(2 * num_blocks)}
        policy = lab.shelf()
        policy.blocks.update(blocks)
        return steps(policy.evict, num_blocks, ())

    few, many = evict(100), evict(200)
    at = f"steps of Python for 100 blocks and for 200: {few:,} and {many:,}; below three times"
    expect(many < 3 * few, True, at=at)
