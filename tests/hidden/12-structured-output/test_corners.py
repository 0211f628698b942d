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
    names = p.execute(code, **given)
    p.see(names["seen"])
    (seen,) = subject.run(p)
    return seen


@pytest.mark.parametrize(
    ("low", "high"), [(0x5001, 0x9FFE), (0x800, 0xD7FF), (0x10001, 0x1FFFE), (0x2001, 0x2FFE)]
)
def test_12_1_cuts_and_no_characters(subject: Any, low: int, high: int) -> None:
    """Thousands of characters, in fewer steps than there are."""
    count = told(subject, DFA + "seen = steps(utf8_ranges, low, high)", low=low, high=high)
    assert count < high - low


@pytest.mark.parametrize(("low", "high"), [(0x5001, 0x9FFE), (0x10001, 0x1FFFE), (0, 0x10FFFF)])
def test_12_1_no_more_runs_than_cuts(subject: Any, low: int, high: int) -> None:
    """A dozen runs, and not one for each 64 characters."""
    code = "seen = len(utf8_ranges(low, high))"
    assert told(subject, DFA + code, low=low, high=high) < 64


def test_12_3_large_sets_are_refused_while_they_are_built(subject: Any) -> None:
    """After n letters the automaton is in states 0 to n. Of 600 sets the first 62 have 2,000
    members."""
    code = """
from unittest.mock import patch
from mini_vllm.structured_output import regex_automaton
from mini_vllm.structured_output.regex_automaton import TooLarge

size, asked = 600, []

class Counted(list):
    def __getitem__(self, state):
        asked.append(state)
        return super().__getitem__(state)

nfa = Nfa([[] for _ in range(size)], Counted(
    [[((97, 97), state), ((97, 97), state + 1)] for state in range(size - 1)] + [[]]
))
with patch.object(regex_automaton, "MAX_WORK", 2_000):
    try:
        subset_construction(nfa, 0, size - 1)
        how = "all were built"
    except TooLarge:
        how = "refused"
seen = [how, len(asked)]
"""
    how, asked = told(subject, DFA + code)
    assert how == "refused" and asked < 30_000, f"{how}: moves were asked for {asked:,} times"


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


def test_12_4_hundreds_of_states_one_step_from_the_end(subject: Any) -> None:
    """Each of 300 reads two bytes that no other one reads together; the table is of int32."""
    code = """
rows = [{97 + state % 20: 300, 120 + state // 20: 300} for state in range(300)]
small = minimise(dfa([*rows, {}], {300}))
seen = [len(small), str(small.table.dtype)]
"""
    assert told(subject, DFA + code) == [301, "int32"]


@pytest.mark.parametrize(
    ("first", "second"),
    [({"x": 3}, {"x": 4}), ({"x": 3, "y": 4}, {"x": 4, "y": 3}), ({"x": 3}, {"y": 3})],
    ids=["another state", "exchanged", "another rule"],
)
def test_12_4_where_a_call_leads(
    subject: Any, first: dict[str, int], second: dict[str, int]
) -> None:
    """States 1 and 2 read nothing, and one c further 4 is where 3 is."""
    code = """
given = dfa([{97: 1, 98: 2}, {}, {}, {}, {99: 3}], {3})
given.calls[1], given.calls[2] = first, second
seen = len(minimise(given))
"""
    assert told(subject, DFA + code, first=first, second=second) == 5


def test_12_5_added_tokens_as_they_are_spelled(subject: Any) -> None:
    """A word border, too; they do not tell how the others are spelled, and may stand behind the
    model's last id."""
    code = """
from types import SimpleNamespace
from mini_vllm.structured_output.token_index import token_bytes

spelled = ["\u0120a", "\u00e9", "<s>", "b", "\u2581"]
added = {
    3: SimpleNamespace(content="b", special=False),
    4: SimpleNamespace(content="\u2581", special=False),
}
tokenizer = SimpleNamespace(
    get_vocab=lambda: {text: i for i, text in enumerate(spelled)},
    all_special_ids=[2], added_tokens_decoder=added,
)
seen = [list(map(list, token_bytes(tokenizer, size))) for size in (5, 3)]
"""
    texts = [[*b" a"], [0xE9], [], [*b"b"], [*"\u2581".encode()]]
    assert told(subject, code) == [texts, texts[:3]]


def test_12_6_no_token_is_text(subject: Any) -> None:
    """A table of special tokens alone: none may follow."""
    code = """
import numpy as np
from types import SimpleNamespace
from mini_vllm.structured_output.token_index import TokenIndex, TokenTable, lift_state

walk = SimpleNamespace(
    step=lambda states, data: states, next=lambda state, byte: state, nbytes=0
)
tokens = TokenTable([b""] * 33)
seen = [lift_state(walk, tokens, 0).tolist(), TokenIndex(walk, tokens).row(0).tolist()]
"""
    assert told(subject, code) == [[-1] * 33, [0, 0]]


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


def test_12_8_an_end_alone_beyond_the_row(subject: Any) -> None:
    """The text may end, and by a token that has no bit: no bit is set, and that is no error."""
    code = """
import numpy as np
from types import SimpleNamespace
from mini_vllm.structured_output.native import NativeGrammar

walk = SimpleNamespace(start=0, is_accepting=lambda state: True)
index = SimpleNamespace(automaton=walk, row=lambda state: np.zeros(2, dtype=np.int32))
mask = np.full((2, 2), -1, dtype=np.int32)
NativeGrammar(index, [64]).fill_bitmask(mask, 0)
seen = mask.tolist()
"""
    assert told(subject, code) == [[0, 0], [-1, -1]]


def test_12_9_the_comma_that_was_given(subject: Any) -> None:
    """White space around it, a sign of another kind: between members and before others."""
    code = """
from mini_vllm.structured_output.json_text import object_pattern
from mini_vllm.structured_output.patterns import text
from mini_vllm.structured_output.regex_automaton import determinise, matches

made = object_pattern([text("a"), text("b")], [False, True], text("x"), text(" ;"))
dfa = determinise(made)
seen = [word for word in words if matches(dfa, word.encode())]
"""
    right = ["a ;b", "b", "b ;x", "a ;b ;x ;x"]
    wrong = ["a,b", "a ;b,x", "b,x", "a ;x", "x", "a", "a ;b;x", " ;b"]
    assert told(subject, code, words=right + wrong) == right


@pytest.mark.parametrize("number", [1_000, 1_001])
def test_12_10_stacks_that_were_given_count_too(subject: Any, number: int) -> None:
    """All of them read, and none calls or returns: a thousand fit, and one more does not."""
    code = """
import numpy as np
from mini_vllm.structured_output.pushdown import BOTTOM, Machine, Pushdown
from mini_vllm.structured_output.regex_automaton import DEAD, Dfa, TooLarge

table = np.full((2, 256), DEAD, dtype=np.int32)
table[0, 97] = 1
walk = Pushdown(Machine({"root": Dfa(table, np.array([False, True]), [{}, {}])}, "root"))
stacks = [walk.push(0, BOTTOM)]
for _ in range(number - 1):
    stacks.append(walk.push(0, stacks[-1]))
try:
    seen = len(walk.closure(stacks))
except TooLarge:
    seen = "refused"
"""
    assert told(subject, code, number=number) == (1_000 if number == 1_000 else "refused")


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


def test_12_10_an_end_that_calls(subject: Any) -> None:
    """`root = x y?`, `x = "a"`, `y = "b"`: behind the call the text may end, or y may be called."""
    code = """
import numpy as np
from mini_vllm.structured_output.pushdown import Machine, Pushdown
from mini_vllm.structured_output.regex_automaton import DEAD, Dfa

def rule(calls, accepting, **moves):
    table = np.full((len(accepting), 256), DEAD, dtype=np.int32)
    for letter, target in moves.items():
        table[0, ord(letter)] = target
    return Dfa(table, np.array(accepting), calls)

rules = {
    "root": rule([{"x": 1}, {"y": 2}, {}], [False, True, True]),
    "x": rule([{}, {}], [False, True], a=1),
    "y": rule([{}, {}], [False, True], b=1),
}
walk = Pushdown(Machine(rules, "root"))
after_a = walk.next(walk.start, ord("a"))
after_b = walk.next(after_a, ord("b"))
seen = [walk.is_accepting(after_a), after_b != DEAD and walk.is_accepting(after_b)]
"""
    assert told(subject, code) == [True, True]


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
