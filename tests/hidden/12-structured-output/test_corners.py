"""Where a wrong answer was seen to get full points: ends and anchors, bytes of any value, the last
bit of a row, and counts of steps."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.process.worker import Program

DFA = """
import numpy as np
from labkit.inside.cost import steps
from mini_vllm.structured_output.regex_automaton import (
    DEAD, Dfa, Nfa, matches, minimise, remove_dead_states, subset_construction, utf8_ranges,
)

def dfa(rows, accepting):
    table = np.full((len(rows), 256), DEAD, dtype=np.int32)
    for state, row in enumerate(rows):
        for byte, target in row.items():
            table[state, byte] = target
    flags = np.array([state in accepting for state in range(len(rows))])
    return Dfa(table, flags, [{} for _ in rows])
"""


def told(subject: Any, code: str, **given: Any) -> Any:
    """`seen`, as a piece of code that the worker runs leaves it."""
    p = Program()
    names = p.new("builtins:dict")
    names.update(given)
    p.call("builtins:exec", code, names)
    p.see(names["seen"])
    (seen,) = subject.run(p)
    return seen


@pytest.mark.parametrize(("low", "high"), [(0x5001, 0x9FFE), (0x800, 0xD7FF), (0x10001, 0x1FFFE)])
def test_12_1_cuts_and_no_characters(subject: Any, low: int, high: int) -> None:
    """Tens of thousands of characters, in fewer steps than there are."""
    count = told(subject, DFA + "seen = steps(utf8_ranges, low, high)", low=low, high=high)
    assert count < high - low


def test_12_3_the_start_is_over(subject: Any) -> None:
    """`a(^|b)` and `(a^)*b`: behind a letter no move is open that is open at the start."""
    code = """
nfa = Nfa()
for _ in range(4):
    nfa.new_state()
nfa.moves[0] = [((97, 97), 1)]
nfa.moves[1] = [((98, 98), 2)]
nfa.join(1, 2, "start")
nfa.join(2, 3, "end")
dfa = subset_construction(nfa, 0, 3)
seen = [matches(dfa, word) for word in (b"", b"a", b"ab", b"b", b"aab")]
"""
    assert told(subject, DFA + code) == [False, False, True, False, False]


@pytest.mark.parametrize("byte", [0, 127, 128, 200, 255])
def test_12_4_any_byte_tells_apart(subject: Any, byte: int) -> None:
    """States 1 and 2 read this byte alone, and only one of them is at the end then."""
    code = """
rows = [{97: 1, 98: 2}, {byte: 3}, {byte: 4}, {}, {97: 3}]
seen = len(minimise(dfa(rows, {3})))
"""
    assert told(subject, DFA + code, byte=byte) == 5


@pytest.mark.parametrize("texts", [[b"a", b"a\0", b"a\0b"], [b"\0", b"\0\0", b"\0b", b"b"]])
def test_12_6_the_byte_0(subject: Any, texts: list[bytes]) -> None:
    """A token may begin with it, end with it, or hold it."""
    code = """
import numpy as np
from types import SimpleNamespace
from mini_vllm.structured_output.token_index import TokenTable, lift_state

def step(states, data):  # the state counts the bytes, and b is never the first
    good = (data != 98) | (states > 0)
    return np.where(good, states + 1, -1).astype(np.int32)

def after(state, byte):
    return int(step(np.array([state]), np.array([byte]))[0])

walk = SimpleNamespace(step=step, next=after)
seen = lift_state(walk, TokenTable(texts), 0).tolist()
"""
    wanted = [-1 if text[:1] == b"b" else len(text) for text in texts]
    assert told(subject, code, texts=texts) == wanted


@pytest.mark.parametrize("words", [1, 2, 3])
def test_12_8_the_last_bit_of_the_row(subject: Any, words: int) -> None:
    """An end in the last place of the row has a bit, the one behind it has none."""
    code = """
import numpy as np
from types import SimpleNamespace
from mini_vllm.structured_output.native import NativeGrammar

walk = SimpleNamespace(start=0, is_accepting=lambda state: True)
index = SimpleNamespace(automaton=walk, row=lambda state: np.zeros(words, dtype=np.int32))
mask = np.full((1, words), -1, dtype=np.int32)
NativeGrammar(index, [32 * words - 1, 32 * words]).fill_bitmask(mask, 0)
seen = mask[0].tolist()
"""
    assert told(subject, code, words=words) == [0] * (words - 1) + [-(2**31)]


@pytest.mark.parametrize("levels", [8, 11])
def test_12_10_stacks_that_double(subject: Any, levels: int) -> None:
    """Refused while they are looked for: not all of 2^8 or 2^11 are pushed."""
    code = """
import numpy as np
from unittest.mock import patch
from mini_vllm.structured_output import pushdown
from mini_vllm.structured_output.regex_automaton import DEAD, Dfa, TooLarge

def dfa(rows, accepting, calls):
    table = np.full((len(rows), 256), DEAD, dtype=np.int32)
    for state, row in enumerate(rows):
        for char, target in row.items():
            table[state, ord(char)] = target
    return Dfa(table, np.array([s in accepting for s in range(len(rows))]), calls)

rules = {}
for level in range(levels):
    both = {f"{side}{level + 1}": after for after, side in enumerate("xy", start=1)}
    for side in "xy":
        rows = [{}, {"1": 3}, {"2": 3}, {}]
        rules[f"{side}{level}"] = dfa(rows, {3}, [both, {}, {}, {}])
for side in "xy":
    rules[f"{side}{levels}"] = dfa([{"a": 1}, {}], {1}, [{}, {}])
pushed, push = [], pushdown.Pushdown.push

def counted(self, state, below):
    pushed.append(state)
    return push(self, state, below)

with patch.object(pushdown, "MAX_STACKS", 20), patch.object(pushdown.Pushdown, "push", counted):
    try:
        pushdown.Pushdown(pushdown.Machine(rules, "x0"))
        how = "all were found"
    except TooLarge:
        how = "refused"
seen = [how, len(pushed)]
"""
    how, pushed = told(subject, code, levels=levels)
    assert how == "refused" and pushed < 200


def test_12_10_an_end_that_goes_on(subject: Any) -> None:
    """`root = x "b"*`, `x = "a"`: behind the call the text may end, and b's may follow."""
    code = """
import numpy as np
from mini_vllm.structured_output.pushdown import Machine, Pushdown
from mini_vllm.structured_output.regex_automaton import DEAD, Dfa

table = np.full((2, 256), DEAD, dtype=np.int32)
root, x = table.copy(), table.copy()
root[1, 98] = 1
x[0, 97] = 1
ends = np.array([False, True])
rules = {"root": Dfa(root, ends, [{"x": 1}, {}]), "x": Dfa(x, ends, [{}, {}])}
walk = Pushdown(Machine(rules, "root"))
state, seen = walk.start, []
for byte in b"abb":
    state = walk.next(state, byte)
    seen.append([state != DEAD and walk.is_accepting(state), state == DEAD])
    if state == DEAD:
        break
"""
    assert told(subject, code) == [[True, False]] * 3


def test_12_12_the_same_draft_again(subject: Any) -> None:
    """Token 5 five times: six rows, and all five are taken back."""
    code = """
import numpy as np
from types import SimpleNamespace
from mini_vllm.structured_output.manager import StructuredOutputManager

taken = []
grammar = SimpleNamespace(
    accept_tokens=lambda name, tokens: taken.extend(tokens) is None,
    rollback=lambda count: taken.__delitem__(slice(len(taken) - count, None)),
)

def fill_row(request, grammar, words, index):
    words[index] = len(taken)

me = SimpleNamespace(_grammar=lambda request: grammar, fill_row=fill_row, _broken={})
words = np.full((6, 1), -1, dtype=np.int32)
StructuredOutputManager.fill_rows(me, SimpleNamespace(request_id="r"), [5] * 5, words)
seen = [words[:, 0].tolist(), taken]
"""
    assert told(subject, code) == [[0, 1, 2, 3, 4, 5], []]
