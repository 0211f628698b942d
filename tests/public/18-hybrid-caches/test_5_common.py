"""Task 18.5: the prefix that every group accepts. Stand-ins say which lengths a kind accepts."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect

WHOLE = range(0, 65, 4)


def common(
    hy: Any, specs: list[Any], kinds: list[Any], limit: int = 31
) -> tuple[list[list[int]], int]:
    manager = hy.of_kinds(specs, kinds)
    tables, length = manager._common_hit(hy.request("ana", 32), limit)
    return [hy.ids(table) for table in tables], length


def test_18_5_the_shortest_wins_and_full_is_trimmed(hy: Any) -> None:
    """Full has 28 tokens, the window 8: full's table is cut to 2 blocks."""
    kinds = [hy.Kind("full", accepts=WHOLE), hy.Kind("window", accepts=[8])]
    got = common(hy, [hy.FULL, hy.window(5)], kinds)
    expect(got, ([[100, 101], [200, 201]], 8), at="tables of full and window, and tokens")


def test_18_5_a_group_that_accepted_is_asked_again(hy: Any) -> None:
    """28 is too long for the state, its 24 is too long for the window: they meet at 20."""
    kinds = [
        hy.Kind("full", accepts=WHOLE),
        hy.Kind("window", accepts=[8, 20, 28]),
        hy.Kind("state", accepts=[12, 20, 24]),
    ]
    tables, length = common(hy, [hy.FULL, hy.window(5), hy.STATE], kinds)
    expect(length, 20, at="window accepts 8, 20, 28; state 12, 20, 24: tokens that hit")
    expect([len(table) for table in tables], [5, 5, 5], at="blocks of full, window and state")


def test_18_5_two_kinds_without_full(hy: Any) -> None:
    """Neither answer is exact: the first has to accept what the second said."""
    kinds = [hy.Kind("window", accepts=[8, 20, 28]), hy.Kind("state", accepts=[8, 24])]
    tables, length = common(hy, [hy.window(5), hy.STATE], kinds)
    expect(length, 8, at="window accepts 8, 20, 28; state 8 and 24: tokens that hit")
    expect([len(table) for table in tables], [2, 2], at="blocks of window and state")


def test_18_5_nothing_in_common_is_nothing(hy: Any) -> None:
    """Every table is empty then."""
    kinds = [hy.Kind("full", accepts=WHOLE), hy.Kind("state")]
    got = common(hy, [hy.FULL, hy.STATE], kinds)
    expect(got, ([[], []], 0), at="full has all blocks, a state is nowhere: tables and tokens")


def test_18_5_full_is_looked_up_once(hy: Any) -> None:
    """It accepts every whole number of blocks below what it has found."""
    kinds = [
        hy.Kind("full", accepts=WHOLE),
        hy.Kind("window", accepts=[8, 20, 28]),
        hy.Kind("state", accepts=[12, 20, 24]),
    ]
    common(hy, [hy.FULL, hy.window(5), hy.STATE], kinds)
    expect(len(kinds[0].log), 1, at="how often the full layers were looked up")


def test_18_5_beside_full_a_kind_is_asked_once(hy: Any) -> None:
    """It spoke last, and full accepts what is shorter."""
    kinds = [hy.Kind("full", accepts=WHOLE), hy.Kind("window", accepts=[8])]
    common(hy, [hy.FULL, hy.window(5)], kinds)
    expect(kinds[1].log, [("find_hit", 28, [1], 4)], at="what the window was asked")


def test_18_5_full_is_asked_first_wherever_it_stands(hy: Any) -> None:
    """Group 0 is the window, group 1 full; tables come by group id."""
    kinds = [hy.Kind("window", accepts=WHOLE), hy.Kind("full", accepts=[16])]
    got = common(hy, [hy.window(5), hy.FULL], kinds)
    expect(got[1], 16, at="full has 16 tokens: tokens that hit")
    expect(kinds[0].log, [("find_hit", 16, [0], 4)], at="what the window was asked, after full")
    expect([table[0] for table in got[0]], [100, 200], at="first blocks of groups 0 and 1")


def test_18_5_equal_groups_are_asked_together(hy: Any) -> None:
    """Two groups of windows: one question, two tables."""
    specs = [hy.window(5), hy.FULL, hy.window(5)]
    kinds = [hy.Kind("window", accepts=[8]), hy.Kind("full", accepts=WHOLE), hy.Kind("window")]
    tables, length = common(hy, specs, kinds)
    expect(length, 8, at="tokens that hit")
    expect(kinds[0].log, [("find_hit", 28, [0, 2], 4)], at="what group 0 was asked")
    expect(kinds[2].log, [], at="what group 2 was asked: its twin answers for it")
    expect([len(table) for table in tables], [2, 2, 2], at="blocks of groups 0, 1, 2")
    expect(tables[2][0], 300, at="the first block of group 2 is its own")


def test_18_5_blocks_of_different_size(hy: Any) -> None:
    """Full has blocks of 4, the window's hold 8: 16 tokens are 4 and 2 blocks; they align to 8."""
    specs = [hy.FULL, hy.window(5, block_size=8)]
    kinds = [hy.Kind("full", accepts=WHOLE), hy.Kind("window", 8, accepts=[16])]
    tables, length = common(hy, specs, kinds)
    expect((length, [len(table) for table in tables]), (16, [4, 2]), at="tokens, and blocks")
    expect(kinds[1].log[0][-1], 8, at="the alignment that the window was given")


def test_18_5_full_is_cut_to_whole_blocks_of_its_own(hy: Any) -> None:
    """Full's blocks hold 8, the window's 4: of 20 tokens full keeps 16, and all are asked again."""
    from mini_vllm.core.cache_groups import GroupSpec

    specs = [GroupSpec("full", 8), hy.window(5), hy.STATE]
    kinds = [
        hy.Kind("full", 8, accepts=range(0, 65, 8)),
        hy.Kind("window", accepts=WHOLE),
        hy.Kind("state", accepts=[8, 20]),
    ]
    tables, length = common(hy, specs, kinds)
    expect((length, [len(table) for table in tables]), (8, [1, 2, 2]), at="tokens, and blocks")
    asked = kinds[1].log[0]
    expect(asked, ("find_hit", 24, [1], 8), at="what the window was asked first: it aligns to 8")


def test_18_5_all_full_groups_are_trimmed(hy: Any) -> None:
    """Two groups of full layers, and a window of 8 tokens."""
    kinds = [hy.Kind("full", accepts=WHOLE), hy.Kind("full"), hy.Kind("window", accepts=[8])]
    tables, length = common(hy, [hy.FULL, hy.FULL, hy.window(5)], kinds)
    expect((length, [len(table) for table in tables]), (8, [2, 2, 2]), at="tokens, and blocks")


def test_18_5_one_kind_alone(hy: Any) -> None:
    """Full layers in two groups: both tables as long as the hit."""
    kinds = [hy.Kind("full", accepts=[12]), hy.Kind("full")]
    got = common(hy, [hy.FULL, hy.FULL], kinds)
    expect(got, ([[100, 101, 102], [200, 201, 202]], 12), at="two groups of full layers")
