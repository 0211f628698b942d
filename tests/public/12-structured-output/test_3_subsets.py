"""Task 12.3: from the NFA to a DFA."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.structured_output.regex_automaton import (
    DEAD,
    Nfa,
    TooLarge,
    epsilon_closure,
    matches,
    subset_construction,
)


def machine(free: dict[int, list[int]], moves: dict[int, list[tuple[str, int]]], size: int) -> Nfa:
    """States 0 to size - 1; a move reads one letter."""
    nfa = Nfa()
    for _ in range(size):
        nfa.new_state()
    for source, targets in free.items():
        nfa.free[source] = [(target, None) for target in targets]
    for source, pairs in moves.items():
        nfa.moves[source] = [((ord(c), ord(c)), target) for c, target in pairs]
    return nfa


def test_12_3_free_moves_are_followed_on_and_on() -> None:
    """0 -> 1 -> 2 -> 3: all four, not only the first two."""
    nfa = machine({0: [1], 1: [2], 2: [3]}, {}, 5)
    expect(epsilon_closure(nfa, [0]), frozenset({0, 1, 2, 3}), at="0 -> 1 -> 2 -> 3, and 4 alone")
    expect(epsilon_closure(nfa, [2, 4]), frozenset({2, 3, 4}), at="from 2 and 4")


def test_12_3_circles_end() -> None:
    """0 -> 1 -> 0 is a circle; a state is visited once."""
    nfa = machine({0: [1], 1: [0, 2]}, {}, 3)
    expect(epsilon_closure(nfa, [0]), frozenset({0, 1, 2}), at="0 -> 1 -> 0, and 1 -> 2")


def test_12_3_conditions_are_open_only_where_they_are() -> None:
    """A "start" move is open at the start, not in the middle."""
    nfa = machine({0: [1]}, {}, 4)
    nfa.join(0, 2, "start")
    nfa.join(0, 3, "end")
    expect(epsilon_closure(nfa, [0]), frozenset({0, 1}), at="in the middle")
    expect(epsilon_closure(nfa, [0], ("start",)), frozenset({0, 1, 2}), at="at the start")
    both = epsilon_closure(nfa, [0], ("start", "end"))
    expect(both, frozenset({0, 1, 2, 3}), at="at both ends, the empty text")


def two_last() -> Nfa:
    """(a|b)*a(a|b): state 0 loops, an a may be the last but one."""
    return machine({}, {0: [("a", 0), ("b", 0), ("a", 1)], 1: [("a", 2), ("b", 2)]}, 3)


def test_12_3_the_worked_example() -> None:
    """(a|b)*a(a|b): sets {0}, {0,1}, {0,1,2}, {0,2}; two of them accept."""
    dfa = subset_construction(two_last(), 0, 2)
    expect(len(dfa), 4, at="(a|b)*a(a|b): states")
    for word in ("ab", "aa", "bab", "bbaa", "a", "b", "ba", "", "abb"):
        wanted = len(word) >= 2 and word[-2] == "a"
        expect(matches(dfa, word.encode()), wanted, at=f"(a|b)*a(a|b) over {word!r}")


def test_12_3_where_nothing_leads_is_dead() -> None:
    """A byte that no member reads leads nowhere."""
    dfa = subset_construction(two_last(), 0, 2)
    expect(int(dfa.table[0, ord("c")]), DEAD, at="(a|b)*a(a|b): c in the first state")


def test_12_3_the_first_state_is_the_closure_of_the_start() -> None:
    """With a free move from start to end the empty text is accepted."""
    nfa = machine({0: [1], 1: [2]}, {2: [("a", 1)]}, 3)
    dfa = subset_construction(nfa, 0, 2)
    expect([matches(dfa, word) for word in (b"", b"a", b"aaa", b"b")], [True, True, True, False],
           at="a*")  # fmt: skip


def test_12_3_anchors_hold_at_their_ends() -> None:
    """^ after a letter is never open; $ only when nothing follows."""
    nfa = machine({}, {0: [("a", 1)], 2: [("b", 3)], 4: [("c", 5)]}, 6)
    nfa.join(1, 2, "start")  # a^b
    nfa.join(0, 4, "start")  # ^c
    nfa.join(5, 3, "end")
    dfa = subset_construction(nfa, 0, 3)
    found = [word for word in (b"ab", b"c", b"cc", b"a") if matches(dfa, word)]
    expect(found, [b"c"], at="a^b|^c$")


def test_12_3_rules_are_symbols_too() -> None:
    """A call leads on like a byte, under its name."""
    nfa = machine({}, {0: [("[", 1)]}, 3)
    nfa.moves[1].append(("value", 2))
    dfa = subset_construction(nfa, 0, 2)
    after = int(dfa.table[0, ord("[")])
    expect([sorted(row) for row in dfa.calls], [["value"] if i == after else [] for i in range(3)],
           at="[ and then a value")  # fmt: skip
    expect(bool(dfa.accepting[dfa.calls[after]["value"]]), True, at="after the value")


def test_12_3_too_many_sets_are_refused() -> None:
    """(a|b)*a(a|b){9} has 1,024 sets; with a limit of 100 that is an error, soon."""
    moves = {0: [("a", 0), ("b", 0), ("a", 1)]}
    moves |= {i: [("a", i + 1), ("b", i + 1)] for i in range(1, 10)}
    nfa = machine({}, moves, 11)
    expect(len(subset_construction(nfa, 0, 10)), 1024, at="without a limit")
    with pytest.raises(TooLarge):
        subset_construction(nfa, 0, 10, max_states=100)


def test_12_3_as_many_sets_as_the_limit_fit() -> None:
    """(a|b)*a(a|b) has four sets: max_states=4 is enough, 3 is not."""
    expect(len(subset_construction(two_last(), 0, 2, max_states=4)), 4, at="max_states=4")
    with pytest.raises(TooLarge):
        subset_construction(two_last(), 0, 2, max_states=3)


def test_12_3_few_sets_can_be_too_much_work() -> None:
    """After n a's the machine is in states 0 to n: 900 sets have 405,000 members together."""
    moves = {state: [("a", state), ("a", state + 1)] for state in range(899)}
    with pytest.raises(TooLarge):
        subset_construction(machine({}, moves, 900), 0, 899)


def test_12_3_the_empty_text_begins_and_ends_in_state_0() -> None:
    """A move that is open at the end, and then one that is open at the start: $^."""
    nfa = machine({}, {0: [("a", 2)]}, 3)
    nfa.join(0, 1, "end")
    nfa.join(1, 2, "start")
    dfa = subset_construction(nfa, 0, 2)
    expect([matches(dfa, word) for word in (b"", b"a", b"aa")], [True, True, False], at="$^|a")


def test_12_3_the_end_of_a_text_is_not_its_start() -> None:
    """Behind a the start is over, so a move that is open there leads nowhere: a(^|b)."""
    nfa = machine({}, {0: [("a", 1)], 1: [("b", 2)]}, 3)
    nfa.join(1, 2, "start")
    dfa = subset_construction(nfa, 0, 2)
    expect([matches(dfa, word) for word in (b"a", b"ab")], [False, True], at="a(^|b) over a and ab")
