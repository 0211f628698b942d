"""Task 02.2: a queue that any block may leave at once."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.core.block_pool import FreeKVCacheBlockQueue, KVCacheBlock


def backwards(queue: FreeKVCacheBlockQueue) -> list[int]:
    """The queue as its prev_free links show it, turned round."""
    found: list[int] = []
    block = queue._tail.prev_free
    while block is not None and block is not queue._head and len(found) < 100:
        found.append(block.block_id)
        block = block.prev_free
    return found[::-1]


def test_02_2_blocks_queue_up_in_order(kv: Any) -> None:
    """append puts a block at the most recently used end and counts it."""
    queue, _ = kv.queue(4)
    expect(kv.ids(queue), [0, 1, 2, 3], at="blocks 0 to 3 are appended in this order")
    expect(backwards(queue), [0, 1, 2, 3], at="the same queue by its prev_free links")
    expect(queue.num_free_blocks, 4, at="num_free_blocks")


def test_02_2_popleft_takes_the_least_recently_used(kv: Any) -> None:
    """The block that has been free longest is given away first."""
    queue, blocks = kv.queue(3)
    first = queue.popleft()
    expect(first.block_id, 0, at="free: 0 1 2")
    links = (first.prev_free, first.next_free)
    expect(links, (None, None), at="prev_free and next_free of block 0 after it has left")
    queue.append(blocks[0])
    order = [queue.popleft().block_id for _ in range(3)]
    expect(order, [1, 2, 0], at="block 0 was given back and stands last")
    expect(queue.num_free_blocks, 0, at="all three are taken: num_free_blocks")


def test_02_2_an_empty_queue_says_so(kv: Any) -> None:
    """popleft raises IndexError instead of handing out a sentinel."""
    queue, _ = kv.queue(1)
    queue.popleft()
    with pytest.raises(IndexError):
        queue.popleft()
    expect(queue.num_free_blocks, 0, at="num_free_blocks after the refused popleft")


@pytest.mark.parametrize("number", [0, 2, 4])
def test_02_2_a_block_leaves_from_anywhere(kv: Any, number: int) -> None:
    """remove joins the two neighbours, at the ends as in the middle."""
    queue, blocks = kv.queue(5)
    queue.remove(blocks[number])
    rest = [i for i in range(5) if i != number]
    at = f"free: 0 1 2 3 4, and block {number} leaves"
    expect(kv.ids(queue), rest, at=at)
    expect(backwards(queue), rest, at=f"{at}; read by the prev_free links")
    expect(queue.num_free_blocks, 4, at=f"{at}: num_free_blocks")


def test_02_2_a_removed_block_may_be_appended_again(kv: Any) -> None:
    """A block outside the queue has no links, so it can be appended again."""
    queue, blocks = kv.queue(4)
    queue.remove(blocks[1])
    links = (blocks[1].prev_free, blocks[1].next_free)
    expect(links, (None, None), at="prev_free and next_free of block 1 after it has left")
    queue.append(blocks[1])
    expect(kv.ids(queue), [0, 2, 3, 1], at="block 1 left and came back")
    expect(backwards(queue), [0, 2, 3, 1], at="the same queue by its prev_free links")


def test_02_2_a_block_that_is_not_there_cannot_leave(kv: Any) -> None:
    """Removing twice raises ValueError and changes nothing."""
    queue, blocks = kv.queue(3)
    queue.remove(blocks[1])
    with pytest.raises(ValueError):
        queue.remove(blocks[1])
    expect(kv.ids(queue), [0, 2], at="block 1 was removed twice")
    expect(queue.num_free_blocks, 2, at="num_free_blocks")


def test_02_2_a_block_is_never_free_twice(kv: Any) -> None:
    """Appending a block that is in the queue raises ValueError; two requests would get it."""
    queue, blocks = kv.queue(3)
    for block in (blocks[0], blocks[2]):
        with pytest.raises(ValueError):
            queue.append(block)
    expect(kv.ids(queue), [0, 1, 2], at="blocks 0 and 2 were freed twice")
    expect(queue.num_free_blocks, 3, at="num_free_blocks")


def test_02_2_leaving_costs_the_same_in_any_queue() -> None:
    """remove and append look at the neighbours only; they never walk along the queue."""
    looked = [0]

    class Watched(KVCacheBlock):
        def __getattribute__(self, name: str) -> Any:
            if name in ("next_free", "prev_free"):
                looked[0] += 1
            return object.__getattribute__(self, name)

    blocks = [Watched(i) for i in range(400)]
    queue = FreeKVCacheBlockQueue(blocks)
    looked[0] = 0
    queue.remove(blocks[200])
    cost = looked[0]
    assert cost <= 12, (
        f"removing block 200 of 400 followed {cost} links. A prefix hit on a free block does this "
        "for every block of the prefix; with 50,000 free blocks you would walk for milliseconds. "
        "The block knows its own neighbours."
    )
    looked[0] = 0
    queue.append(blocks[200])
    cost = looked[0]
    assert cost <= 12, f"appending to 399 blocks followed {cost} links; the tail knows the last one"
