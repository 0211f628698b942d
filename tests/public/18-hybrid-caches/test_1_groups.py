"""Task 18.1: layers are dealt into groups of one size."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.core.cache_groups import group_layers


@pytest.mark.parametrize(
    ("kinds", "groups"),
    [
        ("FFFF", [[0, 1, 2, 3]]),
        ("wFwF", [[0, 2], [1, 3]]),
        ("FwFw", [[0, 2], [1, 3]]),
    ],
)
def test_18_1_a_group_has_one_kind(kinds: str, groups: list[list[int]]) -> None:
    """Kinds stand in the order of their first layers; layers of a group in the model's order."""
    expect(group_layers(list(kinds)), groups, at=f"layers {' '.join(kinds)}: groups")


def test_18_1_the_rarest_kind_gives_the_size() -> None:
    """Twelve layers, two of them full: groups of two, and the windows are dealt like cards."""
    groups = group_layers(list("wwwwwFwwwwwF"))
    at = "layers w w w w w F w w w w w F: groups of 2, windows before the full ones"
    expect(groups, [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]], at=at)
    expect(group_layers(list("sssF")), [[0], [1], [2], [3]], at="layers s s s F: groups of 1")


def test_18_1_the_last_groups_may_be_short() -> None:
    """Gemma's 26 layers, 4 of them full: 22 windows are 6 groups of at most 4."""
    groups = group_layers(list("wwwwwF" * 4 + "ww"))
    expect([len(own) for own in groups], [4, 4, 4, 4, 3, 3, 4], at="layers in each group")
    expect(groups[0], [0, 7, 14, 21], at="the first of 6 groups: windows 0, 6, 12, 18 of 22")


def test_18_1_nearly_equal_kinds_stay_whole() -> None:
    """5 and 4 layers: one group each, and one place of the smaller stays empty."""
    at = "5 layers w and 4 layers F: 5 is less than 1.5 times 4"
    expect(group_layers(list("wFwFwFwFw")), [[0, 2, 4, 6, 8], [1, 3, 5, 7]], at=at)
    at = "3 layers w and 2 layers F: 3 is not less than 1.5 times 2, so groups have 2"
    expect(group_layers(list("wFwFw")), [[0, 4], [2], [1, 3]], at=at)


def test_18_1_any_thing_that_can_be_a_key_is_a_kind() -> None:
    """Two windows of different size are two kinds; equal tuples are one."""
    kinds = [("window", 4), ("window", 8), ("window", 4), ("window", 8)]
    expect(group_layers(kinds), [[0, 2], [1, 3]], at="windows of 4, 8, 4, 8: groups")
