"""Task 17.9: balance experts over ranks."""

from __future__ import annotations

import numpy as np

from labkit.testing import expect
from mini_vllm.distributed.eplb.policy import balanced_packing, keep_places, replicate_experts


def packing(loads: list[float], packs: int) -> list[int]:
    return balanced_packing(np.array(loads), packs).tolist()


def keep(new: list[int], old: list[int], ranks: int) -> list[int]:
    return keep_places(np.array(new), np.array(old), ranks).tolist()


def test_17_9_the_heaviest_first() -> None:
    """9 and 1 share a pack, 5 and 4 the other."""
    expect(packing([1, 5, 9, 4], 2), [1, 2, 0, 3], at="loads 1 5 9 4 in two packs")


def test_17_9_a_full_pack_takes_no_more() -> None:
    """Each has two places, although the second pack stays lighter."""
    expect(packing([100, 1, 1, 1, 1, 1], 2), [0, 3, 4, 5, 1, 2], at="100 and five ones, two packs")


def test_17_9_the_first_of_equal_ones() -> None:
    """Of equally light packs the first gets the next thing."""
    expect(packing([4, 3, 2, 1, 0, 0], 3), [0, 2, 4, 5, 3, 1], at="loads 4 3 2 1 0 0, three packs")


def test_17_9_one_thing_a_pack() -> None:
    """As many packs as things: each stays where it is, whatever it weighs."""
    expect(packing([1, 3, 2], 3), [0, 1, 2], at="three things, three packs")


def test_17_9_copies_of_the_busiest() -> None:
    """9 in halves is 4.5, below 5; so the second copy is of expert 1."""
    experts, counts = replicate_experts(np.array([9.0, 5.0, 1.0]), 5)
    expect(experts.tolist(), [0, 1, 2, 0, 1], at="loads 9 5 1, five places")
    expect(counts.tolist(), [2, 2, 1], at="copies of each")


def test_17_9_a_copy_counts() -> None:
    """12 in thirds: the busiest may get several."""
    experts, counts = replicate_experts(np.array([12.0, 5.0]), 4)
    expect(
        (experts.tolist(), counts.tolist()), ([0, 1, 0, 0], [3, 1]), at="loads 12 5, four places"
    )


def test_17_9_no_copies() -> None:
    """As many places as experts: none has a copy."""
    experts, counts = replicate_experts(np.array([2.0, 0.0]), 2)
    expect((experts.tolist(), counts.tolist()), ([0, 1], [1, 1]), at="loads 2 0, two places")


def test_17_9_the_loads_stay() -> None:
    """The loads stay as they are: they belong to the caller."""
    loads = np.array([3.0, 1.0, 2.0, 4.0])
    balanced_packing(loads, 2)
    replicate_experts(loads, 6)
    expect(loads.tolist(), [3.0, 1.0, 2.0, 4.0], at="the loads afterwards")


def test_17_9_experts_that_stay_keep_their_places() -> None:
    """Rank 0 had 3 1, and is to have 1 7: 1 stays where it is."""
    expect(keep([1, 7, 4, 5], [3, 1, 5, 4], 2), [7, 1, 5, 4], at="new 1 7 | 4 5, old 3 1 | 5 4")


def test_17_9_copies_on_one_rank() -> None:
    """Two of expert 2 come and one was there: it stays, the other takes the free place."""
    expect(keep([2, 2, 1], [0, 2, 1], 1), [2, 2, 1], at="new 2 2 1, old 0 2 1")
    expect(keep([1, 2, 3], [2, 2, 2], 1), [2, 1, 3], at="new 1 2 3, old 2 2 2")


def test_17_9_ranks_for_themselves() -> None:
    """An expert that moves to another rank has no place there yet."""
    expect(keep([0, 1, 2, 3], [2, 3, 0, 1], 2), [0, 1, 2, 3], at="both ranks change all")
