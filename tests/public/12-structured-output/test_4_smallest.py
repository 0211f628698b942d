"""Task 12.4: minimise the DFA."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.testing import expect
from mini_vllm.structured_output.regex_automaton import (
    DEAD,
    Dfa,
    matches,
    minimise,
    remove_dead_states,
)


def dfa(
    rows: list[dict[str, int]], accepting: set[int], calls: dict[int, dict[str, int]] | None = None
) -> Dfa:
    table = np.full((len(rows), 256), DEAD, dtype=np.int32)
    for state, row in enumerate(rows):
        for char, target in row.items():
            table[state, ord(char)] = target
    flags = np.array([state in accepting for state in range(len(rows))])
    return Dfa(table, flags, [(calls or {}).get(state, {}) for state in range(len(rows))])


def test_12_4_a_trap_is_removed() -> None:
    """0 -a-> 1 accepts, 0 -b-> 2 loops for ever: b must not be legal."""
    small = remove_dead_states(dfa([{"a": 1, "b": 2}, {}, {"b": 2}], {1}))
    expect(len(small), 2, at="states left of three")
    expect(int(small.table[0, ord("b")]), DEAD, at="b, behind which no text can end")
    expect(matches(small, b"a"), True, at="a")


def test_12_4_a_way_over_several_states_is_alive() -> None:
    """0 -> 1 -> 2 -> 3: only 3 accepts, and all four can reach it."""
    chain = dfa([{"a": 1}, {"b": 2}, {"c": 3}, {}], {3})
    expect(len(remove_dead_states(chain)), 4, at="abc: states")


def test_12_4_states_keep_their_order() -> None:
    """State 1 goes, 2 and 3 move up; the start stays 0."""
    small = remove_dead_states(dfa([{"x": 1, "a": 2}, {"x": 1}, {"b": 3}, {}], {3}))
    expect([int(small.table[0, ord("a")]), int(small.table[1, ord("b")])], [1, 2], at="ab")
    expect(small.accepting.tolist(), [False, False, True], at="who accepts")


def test_12_4_no_text_at_all_is_an_error() -> None:
    """If the start itself is dead, nothing matches; that is said, not masked."""
    with pytest.raises(ValueError, match="no text matches"):
        remove_dead_states(dfa([{"a": 1}, {"a": 0}], set()))


def test_12_4_calls_lead_on_unless_their_rule_is_empty() -> None:
    """A call of a rule without texts leads nowhere."""
    rows, calls = [{}, {}, {}], {0: {"value": 1, "none": 2}}
    small = remove_dead_states(dfa(rows, {1, 2}, calls), frozenset({"none"}))
    expect(small.calls[0], {"value": 1}, at="calls of value (has texts) and none (has none)")


def test_12_4_twins_become_one() -> None:
    """ab|cb: behind a and behind c the same may follow."""
    twins = dfa([{"a": 1, "c": 2}, {"b": 3}, {"b": 4}, {}, {}], {3, 4})
    small = minimise(twins)
    expect(len(small), 3, at="ab|cb: states of five")
    for word in (b"ab", b"cb", b"a", b"", b"abb", b"bb"):
        expect(matches(small, word), matches(twins, word), at=f"ab|cb over {word!r}")


def test_12_4_accepting_and_not_are_never_one() -> None:
    """Two states without moves: one is an end, the other is not."""
    small = minimise(dfa([{"a": 1}, {"a": 0}], {1}))
    expect(len(small), 2, at="a(aa)*: odd and even stay apart")


def test_12_4_a_difference_far_ahead_splits_too() -> None:
    """xaab|yaac: x and y differ only three letters later."""
    rows = [{"x": 1, "y": 4}, {"a": 2}, {"a": 3}, {"b": 7}, {"a": 5}, {"a": 6}, {"c": 7}, {}]
    small = minimise(dfa(rows, {7}))
    expect(len(small), 8, at="xaab|yaac: nothing can be merged")


def test_12_4_rules_tell_states_apart() -> None:
    """Two states with different calls do not mean the same."""
    rows, calls = [{"a": 1, "b": 2}, {}, {}, {}], {1: {"key": 3}, 2: {"value": 3}}
    expect(len(minimise(dfa(rows, {3}, calls))), 4, at="a key | b value")
    same = {1: {"key": 3}, 2: {"key": 3}}
    expect(len(minimise(dfa(rows, {3}, same))), 3, at="a key | b key")


def test_12_4_where_everything_accepts_one_state_is_enough() -> None:
    """[ab]*, spelled with three states, is one."""
    rows = [{"a": 1, "b": 2}, {"a": 2, "b": 0}, {"a": 0, "b": 1}]
    expect(len(minimise(dfa(rows, {0, 1, 2}))), 1, at="three states that all accept and all go on")


def test_12_4_the_start_stays_first() -> None:
    """State 0 of the answer is the group of the start."""
    small = minimise(dfa([{"b": 1}, {"a": 2}, {}], {2}))
    expect(matches(small, b"ba"), True, at="ba")


def test_12_4_an_end_that_the_start_cannot_reach_is_no_text() -> None:
    """State 1 accepts, but nothing leads there from state 0."""
    with pytest.raises(ValueError, match="no text matches"):
        remove_dead_states(dfa([{"a": 0}, {}], {1}))


def test_12_4_a_splitter_may_be_split_itself() -> None:
    """Six states, all different. A group is split by itself while its moves are looked at."""
    rows = [
        {"a": 4, "b": 4},
        {"a": 2, "b": 5, "c": 5},
        {"a": 1, "b": 4, "c": 0},
        {"b": 0, "c": 0},
        {"a": 0, "b": 4, "c": 0},
        {"a": 3, "b": 0, "c": 2},
    ]
    expect(len(minimise(dfa(rows, {0, 1, 2, 4, 5}))), 6, at="states of six, none of them equal")


def test_12_4_what_the_start_cannot_reach_may_stay() -> None:
    """Nothing leads to state 1, but it reaches the end: only dead states go."""
    small = remove_dead_states(dfa([{"a": 2}, {"b": 2}, {}], {2}))
    expect(len(small), 3, at="states left of three, of which no move leads to state 1")
    expect(int(small.table[1, ord("b")]), 2, at="b in state 1")


def test_12_4_bytes_beyond_letters_tell_states_apart() -> None:
    """Behind a comes é, behind b ê: both are C3, and then their last bytes differ."""
    rows = [{"a": 1, "b": 2}, {"\xc3": 3}, {"\xc3": 4}, {"\xa9": 5}, {"\xaa": 5}, {}]
    expect(len(minimise(dfa(rows, {5}))), 6, at="aé|bê in bytes: nothing can be merged")
