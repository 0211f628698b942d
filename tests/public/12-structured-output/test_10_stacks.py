"""Task 12.10: a pushdown automaton: all calls and returns at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit.testing import expect
from mini_vllm.structured_output.pushdown import BOTTOM, Machine, Pushdown
from mini_vllm.structured_output.regex_automaton import DEAD, Dfa, TooLarge

Rule = tuple[list[dict[str, int]], set[int], dict[int, dict[str, int]]]


def pushdown(rules: dict[str, Rule]) -> Pushdown:
    """Of each rule: a row for each state, which states accept, and the calls of states."""
    dfas = {}
    for name, (rows, accepting, calls) in rules.items():
        table = np.full((len(rows), 256), DEAD, dtype=np.int32)
        for state, row in enumerate(rows):
            for char, target in row.items():
                table[state, ord(char)] = target
        flags = np.array([state in accepting for state in range(len(rows))])
        dfas[name] = Dfa(table, flags, [calls.get(s, {}) for s in range(len(rows))])
    return Pushdown(Machine(dfas, "root"))


def follow(walk: Pushdown, text: str) -> str:
    """What may follow `text`: the legal letters, and . for the end; "dead" if it is not legal."""
    state = walk.start
    for char in text:
        state = walk.next(state, ord(char))
        if state == DEAD:
            return "dead"
    legal = "".join(chr(b) for b in range(33, 127) if walk.next(state, b) != DEAD)
    return legal + ("." if walk.is_accepting(state) else "")


BRACKETS: dict[str, Rule] = {
    # root = "(" root ")" | "x"
    "root": ([{"(": 1, "x": 3}, {}, {")": 3}, {}], {3}, {1: {"root": 2}})
}
LIST: dict[str, Rule] = {
    # root = "[" (item ("," item)*)? "]"     item = "1" | root
    "root": ([{"[": 1}, {"]": 3}, {",": 4, "]": 3}, {}, {}], {3}, {1: {"item": 2}, 4: {"item": 2}}),
    "item": ([{"1": 1}, {}], {1}, {0: {"root": 1}}),
}


def check(walk: Pushdown, wanted: dict[str, str]) -> None:
    for text, legal in wanted.items():
        expect(follow(walk, text), legal, at=f"what may follow {text!r}")


def test_12_10_one_rule_that_calls_itself() -> None:
    """Each ( must find its ), however deep."""
    check(
        pushdown(BRACKETS), {"": "(x", "(": "(x", "((x": ")", "((x)": ")", "((x))": ".", "x": "."}
    )


def test_12_10_two_rules_that_call_each_other() -> None:
    """A list of lists: after an item comes a comma or the end of its own list."""
    check(pushdown(LIST), {"": "[", "[": "1[]", "[1": ",]", "[1,": "1[", "[[": "1[]", "[[1]": ",]",
                           "[[1],": "1[", "[[1]]": ".", "[1]]": "dead"})  # fmt: skip


def test_12_10_a_return_may_lead_to_the_next_return() -> None:
    """]] : the inner list's end is the item's end, and then the outer list goes on."""
    check(pushdown(LIST), {"[[[]]": ",]", "[[[]]]": "."})


def test_12_10_an_empty_rule_returns_at_once() -> None:
    """root = space "a" space, with space = " "? written s: nothing has to be read."""
    walk = pushdown({"root": ([{}, {"a": 2}, {}, {}], {3}, {0: {"s": 1}, 2: {"s": 3}}),
                     "s": ([{"s": 1}, {}], {0, 1}, {})})  # fmt: skip
    check(walk, {"": "as", "s": "a", "a": "s.", "sas": ".", "ss": "dead"})


def test_12_10_a_call_behind_a_call() -> None:
    """root = x y: the second begins where the first has ended, not together with it."""
    walk = pushdown({"root": ([{}, {}, {}], {2}, {0: {"x": 1}, 1: {"y": 2}}),
                     "x": ([{"a": 1}, {}], {1}, {}), "y": ([{"b": 1}, {}], {1}, {})})  # fmt: skip
    check(walk, {"": "a", "a": "b", "ab": ".", "b": "dead"})


def test_12_10_several_stacks_at_once() -> None:
    """root = x "1" | y "2", and both x and y are a's: it is open yet which."""
    walk = pushdown({"root": ([{}, {"1": 3}, {"2": 3}, {}], {3}, {0: {"x": 1, "y": 2}}),
                     "x": ([{"a": 1}, {"a": 1}], {1}, {}),
                     "y": ([{"a": 1}, {}], {1}, {})})  # fmt: skip
    check(walk, {"": "a", "a": "12a", "aa": "1a", "a2": ".", "aa2": "dead"})


def test_12_10_a_call_at_the_end_needs_no_deeper_stack() -> None:
    """root = "a" root | "b": a thousand a's, and still the same few configurations."""
    walk = pushdown({"root": ([{"a": 1, "b": 2}, {}, {}], {2}, {1: {"root": 2}})})
    check(walk, {"a" * 1000: "ab", "a" * 1000 + "b": "."})
    expect(len(walk) < 10, True, at=f"configurations: {len(walk)}")


def test_12_10_what_a_closure_holds() -> None:
    """Sorted numbers; only stacks that can read a byte, and BOTTOM if the text may end."""
    walk = pushdown({"root": ([{"a": 1}, {}], {0, 1}, {})})
    stack = walk.push(walk.machine.start, BOTTOM)
    expect(walk.closure([stack]), (BOTTOM, stack), at="root = a?: closure of its start")
    ended = walk.push(walk.machine.start + 1, BOTTOM)
    expect(walk.closure([ended]), (BOTTOM,), at="behind a: the stack itself reads nothing any more")
    expect(walk.closure([BOTTOM]), (BOTTOM,), at="the closure of BOTTOM")


def test_12_10_too_many_stacks_are_refused(monkeypatch: Any) -> None:
    """A grammar with hundreds of readings ends in an error, not in a pause."""
    monkeypatch.setattr("mini_vllm.structured_output.pushdown.MAX_STACKS", 4)
    rules: dict[str, Rule] = {
        "root": (
            [{}, *[{str(i): 9} for i in range(8)], {}],
            {9},
            {0: {f"r{i}": 1 + i for i in range(8)}},
        )
    }
    rules |= {f"r{i}": ([{"a": 1}, {}], {1}, {}) for i in range(8)}
    with pytest.raises(TooLarge):
        pushdown(rules)


def test_12_10_behind_a_call_the_rule_may_end_or_go_on() -> None:
    """root = x "b"?: the state behind the call accepts, and it reads, too."""
    walk = pushdown({"root": ([{}, {"b": 2}, {}], {1, 2}, {0: {"x": 1}}),
                     "x": ([{"a": 1}, {}], {1}, {})})  # fmt: skip
    check(walk, {"": "a", "a": "b.", "ab": ".", "abb": "dead"})


def test_12_10_too_many_are_refused_soon(monkeypatch: Any) -> None:
    """Each rule calls both of the next level, so stacks double ten times; four are allowed."""
    monkeypatch.setattr("mini_vllm.structured_output.pushdown.MAX_STACKS", 4)
    rules: dict[str, Rule] = {}
    for level in range(10):
        both = {f"{side}{level + 1}": after for after, side in enumerate("xy", start=1)}
        for side in "xy":
            rules[f"{side}{level}"] = ([{}, {"1": 3}, {"2": 3}, {}], {3}, {0: both})
    last: Rule = ([{"a": 1}, {}], {1}, {})
    rules |= {"x10": last, "y10": last, "root": rules["x0"]}
    pushed: list[int] = []
    push = Pushdown.push

    def counted(self: Pushdown, state: int, below: int) -> int:
        pushed.append(state)
        return push(self, state, below)

    monkeypatch.setattr(Pushdown, "push", counted)
    with pytest.raises(TooLarge):
        pushdown(rules)
    at = f"stacks pushed before 2,048 are refused: {len(pushed)}, below 100"
    expect(len(pushed) < 100, True, at=at)
