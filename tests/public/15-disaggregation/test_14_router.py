"""Task 15.14: route by cached prefix."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.inside.cost import steps
from labkit.testing import expect
from mini_vllm.kv_transfer.events import AllBlocksCleared, BlockRemoved, BlockStored
from mini_vllm.kv_transfer.routing import PrefixIndex, choose_worker


def stored(lab: Any, names: str) -> BlockStored:
    return BlockStored([lab.key(name) for name in names], None, [], lab.SIZE)


def removed(lab: Any, names: str) -> BlockRemoved:
    return BlockRemoved([lab.key(name) for name in names])


def score(lab: Any, index: PrefixIndex, names: str = "abc", worker: str = "north") -> int:
    return index.score(worker, [lab.key(name) for name in names])


def test_15_14_a_prefix_without_gaps(lab: Any) -> None:
    """Blocks from the beginning, up to the first that is missing."""
    index = PrefixIndex()
    index.apply("north", [stored(lab, "ab"), stored(lab, "d")])
    expect(score(lab, index, "abcd"), 2, at="a, b and d are there")
    expect(score(lab, index, "ab"), 2, at="a, b: all of a short prompt")
    expect(score(lab, index, "cab"), 0, at="c is missing, and it comes first")
    expect(score(lab, index, worker="south"), 0, at="south has told nothing")


def test_15_14_copies_are_counted(lab: Any) -> None:
    """Of two equal blocks one may go, and the contents are still there."""
    index = PrefixIndex()
    index.apply("north", [stored(lab, "abc"), stored(lab, "a"), removed(lab, "a")])
    expect(score(lab, index), 3, at="a twice, removed once")
    index.apply("north", [removed(lab, "a")])
    expect(score(lab, index), 0, at="a removed twice")
    index.apply("north", [stored(lab, "a"), stored(lab, "a"), removed(lab, "aa")])
    expect(score(lab, index), 0, at="a stored twice, and removed twice by one event")


def test_15_14_what_was_never_told_is_ignored(lab: Any) -> None:
    """A removal of an unknown block does not count against a later copy."""
    index = PrefixIndex()
    index.apply("north", [removed(lab, "a"), stored(lab, "a")])
    expect(score(lab, index, "a"), 1, at="removed before it was stored")


def test_15_14_all_cleared(lab: Any) -> None:
    """One worker's part is empty, another's is not."""
    index = PrefixIndex()
    index.apply("north", [stored(lab, "abc")])
    index.apply("south", [stored(lab, "ab")])
    index.apply("north", [AllBlocksCleared(), stored(lab, "a")])
    expect(
        [score(lab, index, worker=w) for w in ("north", "south")], [1, 2], at="north was cleared"
    )


def test_15_14_the_worker_that_is_done_first(lab: Any) -> None:
    """Queue and missing tokens together; of equals the first."""
    at = "100 tokens, blocks of 16"
    expect(choose_worker([4, 0], [0, 0], 100, 16), 0, at=f"{at}: 0 has 4 blocks, both idle")
    expect(choose_worker([4, 0], [63, 0], 100, 16), 0, at=f"{at}: 63 queued before 64 saved")
    expect(choose_worker([4, 0], [65, 0], 100, 16), 1, at=f"{at}: 65 queued before 64 saved")
    expect(choose_worker([0, 1, 1], [5, 5, 5], 100, 16), 1, at=f"{at}: 1 and 2 are alike")


def test_15_14_no_worker() -> None:
    """Without a worker there is nothing to choose."""
    with pytest.raises(ValueError):
        choose_worker([], [], 100, 16)


def test_15_14_each_block_is_looked_up_once(lab: Any) -> None:
    """A prompt twice as long takes twice the steps, also where its middle block is missing."""

    def count(num_blocks: int) -> int:
        hashes = [number.to_bytes(32, "big") for number in range(num_blocks)]
        index = PrefixIndex()
        index.apply("north", [BlockStored(hashes, None, [], lab.SIZE)])
        index.apply("north", [BlockRemoved([hashes[num_blocks // 2]])])
        expect(index.score("north", hashes), num_blocks // 2, at=f"half of {num_blocks} blocks")
        return steps(index.score, "north", hashes)

    few, many = count(100), count(200)
    at = f"steps of Python for 100 blocks and for 200: {few:,} and {many:,}; below three times"
    expect(many < 3 * few, True, at=at)
