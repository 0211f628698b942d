"""Bytes, machines and stacks: random problems beside plain loops over words."""

from __future__ import annotations

import ast
import random
import re
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.judge.collisions import weak_hashes_say_7
from labkit.process.worker import Program

many = settings(max_examples=30)
few = settings(max_examples=12)
REGEX = "mini_vllm.structured_output.regex_automaton:"
PATTERNS = "mini_vllm.structured_output.patterns:"
JSON = "mini_vllm.structured_output.json_text:"
PUSHDOWN = "mini_vllm.structured_output.pushdown:"
DEAD = -1


def words(alphabet: str, longest: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.text(alphabet, max_size=longest), min_size=12, max_size=25, unique=True)


@many
@example(ends=(0x20, 0x10FFFF), near=[-1, 0, 1])
@given(ends=st.tuples(*[st.integers(0, 0x10FFFF)] * 2), near=st.lists(st.integers(-70, 70)))
def test_12_1_random_intervals(subject: Any, ends: tuple[int, int], near: list[int]) -> None:
    """Runs spell what lies in the interval, and nothing beside it."""
    low, high = sorted(ends)
    p = Program()
    p.see(p.call(f"{REGEX}utf8_ranges", low, high))
    [runs] = subject.run(p)
    inside = [low + (high - low) * part // 16 for part in range(17)]
    inside += [0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000]
    for code in [low - 1, high + 1, *inside, *(e + d for e in (low, high) for d in near)]:
        if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            continue
        data = chr(code).encode()
        hits = sum(
            len(run) == len(data) and all(a <= b <= c for b, (a, c) in zip(data, run, strict=True))
            for run in runs
        )
        assert hits == (low <= code <= high), f"U+{code:04X} for U+{low:04X} to U+{high:04X}"
    for run in runs:  # ill-formed bytes are spelled by none
        assert not (len(run) == 3 and run[0][0] == 0xED and run[1][1] > 0x9F)
        assert all(0xC2 <= a <= c <= 0xF4 for a, c in run[:1] if len(run) > 1)


BORDERS = (0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF)


@many
@example(ends=(0xD800, 0xDFFF))
@example(ends=(0xD900, 0xE000))
@example(ends=(0x7F, 0xDBFF))
@given(
    ends=st.tuples(
        *[st.tuples(st.sampled_from(BORDERS), st.integers(-2, 2)).map(lambda x: sum(x))] * 2
    )
)
def test_12_1_ends_at_every_border(subject: Any, ends: tuple[int, int]) -> None:
    """Intervals that begin or end where the number of bytes changes, or among the surrogates."""
    low, high = (min(max(end, 0), 0x10FFFF) for end in sorted(ends))
    p = Program()
    p.see(p.call(f"{REGEX}utf8_ranges", low, high))
    p.see(p.call(f"{REGEX}utf8_ranges", high + 1, low))
    runs, none = subject.run(p)
    assert none == []
    for code in {min(max(e + d, 0), 0x10FFFF) for e in (*BORDERS, low, high) for d in (-1, 0, 1)}:
        if 0xD800 <= code <= 0xDFFF:
            continue
        data = chr(code).encode()
        hits = sum(
            len(run) == len(data) and all(a <= b <= c for b, (a, c) in zip(data, run, strict=True))
            for run in runs
        )
        assert hits == (low <= code <= high), f"U+{code:04X} for U+{low:04X} to U+{high:04X}"
    assert not any(len(r) == 3 and r[0][0] <= 0xED <= r[0][1] and r[1][1] > 0x9F for r in runs)


def regexes() -> st.SearchStrategy[str]:
    letter = st.sampled_from(["a", "b", "[ab]", "c?", "(a|bc)", "(|a)"])
    count = st.sampled_from(["", "*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,1}"])
    part = st.tuples(letter, count).map(lambda x: f"({x[0]}){x[1]}")
    inner = st.lists(part, min_size=1, max_size=3).map("".join)
    return st.lists(
        st.tuples(inner, count).map(lambda x: f"({x[0]}){x[1]}"), min_size=1, max_size=2
    ).map("|".join)


def run_nfa(free: Any, moves: Any, start: int, end: int, data: bytes) -> bool:
    def close(states: set[int], at: set[str]) -> set[int]:
        todo = list(states)
        while todo:
            for target, condition in free[todo.pop()]:
                if target not in states and (condition is None or condition in at):
                    states.add(target)
                    todo.append(target)
        return states

    states = close({start}, {"start"})
    for byte in data:
        read = {t for s in states for (low, high), t in moves[s] if low <= byte <= high}
        states = close(read, set())
    return end in close(states, {"end"} if data else {"start", "end"})


def see_machine(p: Program, pattern: Any) -> None:
    """Observe the free moves, the moves and both ends of a pattern's machine."""
    nfa = p.new(f"{REGEX}Nfa")
    both = nfa.add(pattern)
    for seen in (nfa.free, nfa.moves, both):
        p.see(seen)


@many
@given(pattern=regexes(), texts=words("abc", 6))
def test_12_2_random_patterns(subject: Any, pattern: str, texts: list[str]) -> None:
    """The machine accepts what Python's re matches, and both ends are free of moves back."""
    p = Program()
    see_machine(p, p.call(f"{PATTERNS}parse_regex", pattern))
    free, moves, (start, end) = subject.run(p)
    assert not free[end] and not moves[end]
    assert start not in [t for row in free for t, _ in row] + [t for row in moves for _, t in row]
    for text in texts:
        expected = re.fullmatch(pattern, text) is not None
        assert run_nfa(free, moves, start, end, text.encode()) == expected, (pattern, text)


WORDS = ["".join(word) for size in range(5) for word in product("ab", repeat=size)]


@pytest.mark.parametrize("pattern", ["^ab$", "^a|b", "(^a|b)b*", "a(b|$)", "(a|^)b", "a$|b"])
def test_12_2_anchors(subject: Any, pattern: str) -> None:
    """What ^ and $ let through, in all words of up to four letters."""
    p = Program()
    see_machine(p, p.call(f"{PATTERNS}parse_regex", pattern))
    free, moves, (start, end) = subject.run(p)
    found = [word for word in WORDS if run_nfa(free, moves, start, end, word.encode())]
    assert found == [word for word in WORDS if re.fullmatch(pattern, word)]


@pytest.mark.parametrize("at_end", [False, True])
def test_12_2_an_anchor_in_the_middle(subject: Any, at_end: bool) -> None:
    """It lets nothing through there; alone it is the empty text."""
    p = Program()
    anchor = p.new(f"{PATTERNS}Anchor", at_end)
    letters = [p.call(f"{PATTERNS}text", letter) for letter in "ab"]
    middle = p.new(f"{PATTERNS}Concat", (letters[0], anchor, letters[1]))
    for pattern in (middle, anchor):
        see_machine(p, pattern)
    seen = subject.run(p)
    for (free, moves, (start, end)), right in ((seen[:3], []), (seen[3:], [""])):
        found = [word for word in WORDS if run_nfa(free, moves, start, end, word.encode())]
        assert found == right


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("[ax-z]", ["a", "x", "z", "b", "ax"]),
        ("[é-日]b", ["éb", "ࠀb", "日b", "èb", "é", "b"]),
        ("[^a]", ["b", "é", "日", "😀", "a", ""]),
        ("(a|b){0}", ["", "a", "b"]),
        ("a{0}b{0,2}", ["", "b", "bb", "bbb", "a"]),
    ],
    ids=["two-ranges", "two-and-three-bytes", "all-but-one", "no-time", "no-time-and-twice"],
)
def test_12_2_several_ranges_and_no_copy(subject: Any, pattern: str, texts: list[str]) -> None:
    """Characters of one to four bytes, in more than one range; parts that are there no time."""
    p = Program()
    see_machine(p, p.call(f"{PATTERNS}parse_regex", pattern))
    free, moves, (start, end) = subject.run(p)
    found = [text for text in texts if run_nfa(free, moves, start, end, text.encode())]
    assert found == [text for text in texts if re.fullmatch(pattern, text)]


def test_12_2_calls_and_nothing_at_all(subject: Any) -> None:
    """A call is one move, by its rule's name; no choice is no way, and no part a free one."""
    p = Program()
    patterns = [
        p.new(f"{PATTERNS}Call", "rule"),
        p.new(f"{PATTERNS}Union", ()),
        p.new(f"{PATTERNS}Concat", ()),
    ]
    for pattern in patterns:
        see_machine(p, pattern)
    seen = subject.run(p)
    (free, moves, (start, end)), nothing, empty = seen[:3], seen[3:6], seen[6:]
    reached, todo = {start}, [start]
    while todo:
        for target, _ in free[todo.pop()]:
            if target not in reached:
                reached.add(target)
                todo.append(target)
    named = [(name, target) for state in reached for name, target in moves[state]]
    assert len(named) == 1 and named[0][0] == "rule" and end not in reached
    assert run_nfa(free, [[] for _ in moves], named[0][1], end, b"")
    assert not run_nfa(nothing[0], nothing[1], *nothing[2], b"")
    assert run_nfa(empty[0], empty[1], *empty[2], b"")


def test_12_2_as_many_copies_as_a_repeat_asks_for(subject: Any) -> None:
    """Up to 1,500 letters, as `maxLength` asks for: 1,500 machines, not as many for each length."""
    p = Program()
    nfa = p.new(f"{REGEX}Nfa")
    nfa.add(p.call(f"{PATTERNS}parse_regex", "a{0,1500}"))
    p.see(p.call("builtins:len", nfa.free))
    assert subject.run(p)[0] < 10 * 1_500


REPEATED = {"Chars": "a", "Repeat": "a*", "Union": "a?", "Concat": "aa"}
TIMES = [(0, None), (1, None), (3, None), (0, 1), (2, 2), (1, 3)]


def test_12_2_ends_are_free_for_others(subject: Any) -> None:
    """Repeats of a letter, of themselves, of a choice and of a row: nothing leads into a start, and
    nothing out of an end."""
    p = Program()
    letter = p.call(f"{PATTERNS}text", "a")
    parts = {
        "Chars": letter,
        "Repeat": p.new(f"{PATTERNS}Repeat", letter, 0, None),
        "Union": p.new(f"{PATTERNS}Union", (letter, p.new(f"{PATTERNS}Concat", ()))),
        "Concat": p.new(f"{PATTERNS}Concat", (letter, letter)),
    }
    cases = list(product(parts, TIMES))
    for kind, times in cases:
        nfa = p.new(f"{REGEX}Nfa")
        p.see([nfa.add(p.new(f"{PATTERNS}Repeat", parts[kind], *times)), nfa.free, nfa.moves])
    seen = subject.run(p)
    for (kind, (least, most)), ((start, end), free, moves) in zip(cases, seen, strict=True):
        right = f"(?:{REPEATED[kind]}){{{least},{'' if most is None else most}}}"
        assert not free[end] and not moves[end], right
        targets = [t for row in free for t, _ in row] + [t for row in moves for _, t in row]
        assert start not in targets, right
        for word in ("a" * size for size in range(9)):
            is_in = re.fullmatch(right, word) is not None
            assert run_nfa(free, moves, start, end, word.encode()) == is_in, (right, word)


def graph(draw: Any, size: int) -> tuple[list[list[Any]], list[list[Any]]]:
    state = st.integers(0, size - 1)
    free = [[(draw(state), None) for _ in range(draw(st.integers(0, 1)))] for _ in range(size)]
    byte = st.sampled_from([(97, 97), (98, 98), (97, 98)])
    moves = [
        [(draw(byte), draw(state)) for _ in range(draw(st.integers(0, 2)))] for _ in range(size)
    ]
    return free, moves


@many
@given(data=st.data(), texts=words("ab", 7))
def test_12_3_random_machines(subject: Any, data: st.DataObject, texts: list[str]) -> None:
    """The automaton is in the set of states that the machine is in; closures are complete."""
    size = data.draw(st.integers(2, 6))
    free, moves = graph(data.draw, size)
    p = Program()
    nfa = p.new(f"{REGEX}Nfa")
    p.set(nfa, "free", free)
    p.set(nfa, "moves", moves)
    for state in range(size):
        p.see(p.call("builtins:sorted", p.call(f"{REGEX}epsilon_closure", nfa, [state])))
    dfa = p.call(f"{REGEX}subset_construction", nfa, 0, size - 1)
    for text in texts:
        p.see(p.call(f"{REGEX}matches", dfa, p.call("builtins:bytes", list(text.encode()))))
    seen = subject.run(p)
    for state in range(size):
        reached, todo = {state}, [state]
        while todo:
            for target, _ in free[todo.pop()]:
                if target not in reached:
                    reached.add(target)
                    todo.append(target)
        assert seen[state] == sorted(reached)
    for text, found in zip(texts, seen[size:], strict=True):
        assert found == run_nfa(free, moves, 0, size - 1, text.encode()), text


def test_12_3_moves_with_a_condition(subject: Any) -> None:
    """Open at the start, or at the end, and nowhere else."""
    free = [[(1, "start")], [], [(3, "end"), (1, "start")], []]
    moves = [[((98, 98), 2)], [((97, 97), 2)], [((97, 97), 2)], []]
    p = Program()
    nfa = p.new(f"{REGEX}Nfa")
    p.set(nfa, "free", free)
    p.set(nfa, "moves", moves)
    for state, at in (
        (0, ()),
        (0, ("start",)),
        (0, ("end",)),
        (2, ("end",)),
        (2, ("start", "end")),
    ):
        p.see(p.call("builtins:sorted", p.call(f"{REGEX}epsilon_closure", nfa, [state], at)))
    dfa = p.call(f"{REGEX}subset_construction", nfa, 0, 3)
    for word in WORDS:
        p.see(p.call(f"{REGEX}matches", dfa, p.call("builtins:bytes", list(word.encode()))))
    seen = subject.run(p)
    assert seen[:5] == [[0], [0, 1], [0], [2, 3], [1, 2, 3]]
    assert seen[5:] == [run_nfa(free, moves, 0, 3, word.encode()) for word in WORDS]


SETS = (
    [1, 2, 3], [1, 23], [123], [2, 4], [1, 5], [6], [1, 4, 9], [1, 5, 9], [1, 5, 6], [2, 3, 7],
)  # fmt: skip
"""Equal when their numbers are joined, added, squared and added, or asked for the least, the most
and how many."""


def test_12_3_no_two_sets_of_states_are_taken_for_one(subject: Any) -> None:
    """Each set is reached by a letter, and each state of it ends by a letter of its own."""
    states = sorted({state for members in SETS for state in members})
    moves: list[list[Any]] = [[] for _ in range(125)]
    moves[0] = [((97 + i, 97 + i), s) for i, members in enumerate(SETS) for s in members]
    for index, state in enumerate(states):
        moves[state] = [((110 + index, 110 + index), 124)]
    p = Program()
    nfa = p.new(f"{REGEX}Nfa")
    p.set(nfa, "free", [[] for _ in moves])
    p.set(nfa, "moves", moves)
    dfa = p.call(f"{REGEX}subset_construction", nfa, 0, 124)
    asked = [(i, index) for i in range(len(SETS)) for index in range(len(states))]
    for i, index in asked:
        text = p.call("builtins:bytes", [97 + i, 110 + index])
        p.see(p.call(f"{REGEX}matches", dfa, text))
    assert subject.run(p) == [states[index] in SETS[i] for i, index in asked]


@pytest.mark.parametrize("far", [2**8 + 1, 2**16 + 1])
def test_12_3_a_state_is_known_by_its_whole_number(subject: Any, far: int) -> None:
    """a leads to state 1, b to one whose number ends in the same bytes: only from there c ends."""
    p = Program()
    nfa = p.new(f"{REGEX}Nfa")
    p.set(nfa, "free", p.call("operator:mul", [[]], far + 2))
    moves = p.call("operator:mul", [[]], far + 2)
    p.call("operator:setitem", moves, 0, [((97, 97), 1), ((98, 98), far)])
    p.call("operator:setitem", moves, far, [((99, 99), far + 1)])
    p.set(nfa, "moves", moves)
    dfa = p.call(f"{REGEX}subset_construction", nfa, 0, far + 1)
    for text in (b"ac", b"bc"):
        p.see(p.call(f"{REGEX}matches", dfa, text))
    assert subject.run(p) == [False, True]


def test_12_3_no_checksum_stands_for_a_set(subject: Any) -> None:
    """When `hash()` and all checksums say 7 to everything, sets differ as before."""
    p = Program()
    nfa = p.new(f"{REGEX}Nfa")
    p.set(nfa, "free", [[], [], [], []])
    p.set(nfa, "moves", [[((97, 97), 1), ((98, 98), 2)], [((99, 99), 3)], [((100, 100), 3)], []])
    with weak_hashes_say_7(p):
        dfa = p.call(f"{REGEX}subset_construction", nfa, 0, 3)
    for text in (b"ac", b"ad", b"bc", b"bd"):
        p.see(p.call(f"{REGEX}matches", dfa, text))
    assert subject.run(p) == [True, False, False, True]


def test_12_3_the_empty_text_stands_at_both_ends(subject: Any) -> None:
    """`$^|a`: first a move that is open at the end, then one that is open at the start."""
    free = [[(1, "end")], [(2, "start")], []]
    moves = [[((97, 97), 2)], [((98, 98), 2)], []]
    p = Program()
    nfa = p.new(f"{REGEX}Nfa")
    p.set(nfa, "free", free)
    p.set(nfa, "moves", moves)
    dfa = p.call(f"{REGEX}subset_construction", nfa, 0, 2)
    for text in (b"", b"a", b"b", b"aa"):
        p.see(p.call(f"{REGEX}matches", dfa, p.call("builtins:bytes", list(text))))
    assert subject.run(p) == [True, True, False, False]


def test_12_3_a_long_way_without_reading(subject: Any) -> None:
    """Three thousand free moves in a row, as letters that may all be missing make them."""
    p = Program()
    nfa = p.new(f"{REGEX}Nfa")
    p.set(nfa, "free", [*([(state + 1, None)] for state in range(3_000)), []])
    p.see(p.call("builtins:len", p.call(f"{REGEX}epsilon_closure", nfa, [0])))
    assert subject.run(p) == [3_001], "the way from state 0 is not followed to its end"


COUNTING = """
from mini_vllm.structured_output.regex_automaton import Nfa, TooLarge, subset_construction

class Counted(list):
    asked = 0

    def __getitem__(self, state):
        Counted.asked += 1
        return super().__getitem__(state)

chain = [[((97, 98), state + 1)] for state in range(1, 17)]
nfa = Nfa([[] for _ in range(18)], Counted([[((97, 98), 0), ((97, 97), 1)], *chain, []]))
Counted.asked = 0
try:
    subset_construction(nfa, 0, 17, 300)
    refused = False
except TooLarge:
    refused = True
told = [refused, Counted.asked]
"""


def test_12_3_an_exponential_pattern_is_refused(subject: Any) -> None:
    """2**16 sets are not built to find out that they are more than 300."""
    p = Program()
    names = p.execute(COUNTING)
    p.see(names["told"])
    [(refused, asked)] = subject.run(p)
    assert refused and asked < 50_000, f"the moves of states were asked for {asked:,} times"


@pytest.mark.parametrize(("limit", "fits"), [(4, False), (5, True)])
def test_12_3_exactly_the_limit_fits(subject: Any, limit: int, fits: bool) -> None:
    """`.*a.` in two letters and its end: five sets."""
    p = Program()
    nfa = p.new(f"{REGEX}Nfa")
    p.set(nfa, "free", [[], [], [], []])
    p.set(nfa, "moves", [[((97, 98), 0), ((97, 97), 1)], [((97, 98), 2)], [((99, 99), 3)], []])
    build = p.name(f"{REGEX}subset_construction")
    if fits:
        p.see(p.call("builtins:len", build(nfa, 0, 3, limit)))
    else:
        p.refuse(f"{REGEX}TooLarge", build, nfa, 0, 3, limit)
    assert subject.run(p) == ([limit] if fits else [])


def test_12_3_rules_lead_on_too(subject: Any) -> None:
    """By a rule's name to two states at once; and states that are asked for one at a time."""
    p = Program()
    nfa = p.new(f"{REGEX}Nfa")
    p.set(nfa, "free", [[(1, None)], [], [(3, None)], []])
    p.set(nfa, "moves", [[("x", 2)], [("x", 1), ("y", 3)], [], []])
    dfa = p.call(f"{REGEX}subset_construction", nfa, 0, 3)
    for rule in "xy":
        after = dfa.calls[0][rule]
        p.see(dfa.accepting[after].item())
        p.see(p.call("builtins:sorted", dfa.calls[after]))
    closure = p.call(f"{REGEX}epsilon_closure", nfa, p.call("builtins:iter", [0, 2]))
    p.see(p.call("builtins:sorted", closure))
    assert subject.run(p) == [True, ["x", "y"], True, [], [0, 1, 2, 3]]


def test_12_3_what_was_asked_for_stays(subject: Any) -> None:
    """A set of states is asked about, and used for the next question."""
    p = Program()
    nfa = p.new(f"{REGEX}Nfa")
    p.set(nfa, "free", [[(1, None)], [(2, None)], []])
    states = p.call("builtins:set", [0])
    p.see(p.call("builtins:sorted", p.call(f"{REGEX}epsilon_closure", nfa, states)))
    p.see(states)
    assert subject.run(p) == [[0, 1, 2], {0}]


def test_12_3_large_sets_are_refused_too(subject: Any) -> None:
    """After n letters the automaton is in states 0 to n: 1,000 sets have 500,000 members."""
    size = 1000
    p = Program()
    nfa = p.new(f"{REGEX}Nfa")
    p.set(nfa, "free", [[] for _ in range(size)])
    moves = [[((97, 97), state), ((97, 97), state + 1)] for state in range(size - 1)]
    p.set(nfa, "moves", [*moves, []])
    p.refuse(f"{REGEX}TooLarge", p.name(f"{REGEX}subset_construction"), nfa, 0, size - 1)
    assert subject.run(p) == []


@many
@given(data=st.data(), texts=words("ab", 8))
def test_12_4_random_automata(subject: Any, data: st.DataObject, texts: list[str]) -> None:
    """The same words, as few states as their differences need, and a way out of each."""
    size = data.draw(st.integers(1, 7))
    target = st.integers(DEAD, size - 1)
    rows = [[data.draw(target), data.draw(target)] for _ in range(size)]
    accepting = [data.draw(st.booleans()) for _ in range(size)]
    alive = {s for s in range(size) if accepting[s]}
    while more := {s for s in range(size) if s not in alive and alive & set(rows[s])}:
        alive |= more
    p = Program()
    table = [[DEAD] * 97 + row + [DEAD] * (256 - 99) for row in rows]
    array = p.call("numpy:array", table, dtype=p.name("numpy:int32"))
    dfa = p.new(f"{REGEX}Dfa", array, p.call("numpy:array", accepting), [{} for _ in rows])
    if 0 not in alive:
        p.refuse("ValueError", p.name(f"{REGEX}remove_dead_states"), dfa)
        assert subject.run(p) == []
        return
    living = p.call(f"{REGEX}remove_dead_states", dfa)
    small = p.call(f"{REGEX}minimise", living)
    p.see(p.call("builtins:len", living))
    p.see(p.call("builtins:len", small))
    for text in texts:
        p.see(p.call(f"{REGEX}matches", small, p.call("builtins:bytes", list(text.encode()))))
    seen = subject.run(p)
    assert seen[0] == len(alive)
    assert seen[1] == count_classes(rows, accepting, alive)
    for text, found in zip(texts, seen[2:], strict=True):
        state = 0
        for char in text:
            state = rows[state][ord(char) - 97] if state in alive else DEAD
        assert found == (state in alive and accepting[state]), text


HARD = [
    ([[-1], [3], [6], [5], [1], [0], [4]], [1, 1, 1, 1, 0, 1, 1], 7),
    ([[4, 4, -1], [2, 5, 5], [1, 4, 0], [-1, 0, 0], [0, 4, 0], [3, 0, 2]], [1, 1, 1, 0, 1, 1], 6),
    (
        [[2, 5], [5, -1], [3, 0], [2, 7], [0, -1], [1, 6], [3, -1], [6, 2]],
        [1, 0, 0, 0, 1, 1, 1, 1],
        8,
    ),
]
"""No two states are equal, and a group is split while it, or the group that it leads to, waits."""


@pytest.mark.parametrize(("rows", "accepting", "count"), HARD)
def test_12_4_states_that_a_longer_word_tells_apart(
    subject: Any, rows: list[list[int]], accepting: list[int], count: int
) -> None:
    """An answer that begins with one group, looks at a group while it shrinks, or forgets half of
    one that was still to be looked at, has too few states."""
    p = Program()
    table = [[DEAD] * 97 + row + [DEAD] * (159 - len(row)) for row in rows]
    array = p.call("numpy:array", table, dtype=p.name("numpy:int32"))
    flags = p.call("numpy:array", [bool(flag) for flag in accepting])
    old = p.new(f"{REGEX}Dfa", array, flags, [{} for _ in rows])
    p.see(p.call("builtins:len", p.call(f"{REGEX}minimise", old)))
    assert subject.run(p) == [count]


def test_12_4_no_rule_that_is_empty_leads_on(subject: Any) -> None:
    """Of three calls only that of a rule with a text leads to the end."""
    p = Program()
    table = p.call("numpy:full", [3, 256], DEAD, dtype=p.name("numpy:int32"))
    accepting = p.call("numpy:array", [False, False, True])
    dfa = p.new(f"{REGEX}Dfa", table, accepting, [{"x": 2, "y": 1, "z": 2}, {"y": 2}, {}])
    empty = p.call("builtins:frozenset", ["x", "y"])
    p.see(p.call(f"{REGEX}remove_dead_states", dfa, empty).calls)
    assert subject.run(p) == [[{"z": 1}, {}]]


def test_12_4_calls_lead_on(subject: Any) -> None:
    """By a call alone the end is reached; without its rule nothing is, and that is an error."""
    p = Program()
    table = p.call("numpy:full", [3, 256], DEAD, dtype=p.name("numpy:int32"))
    accepting = p.call("numpy:array", [False, True, False])
    dfa = p.new(f"{REGEX}Dfa", table, accepting, [{"x": 1, "y": 2}, {}, {}])
    p.see(p.call(f"{REGEX}remove_dead_states", dfa).calls)
    no_rule = p.call("builtins:frozenset", ["x"])
    remove = p.name(f"{REGEX}remove_dead_states")
    p.refuse("ValueError", remove, dfa, no_rule, says="no text matches")
    assert subject.run(p) == [[{"x": 1}, {}]]


def chain(p: Program, size: int) -> Any:
    """An automaton for one word: `size` - 1 times a."""
    table = p.call("numpy:full", [size, 256], DEAD, dtype=p.name("numpy:int32"))
    p.call("numpy:copyto", table.T[ord("a")], [*range(1, size), DEAD])
    accepting = p.call("numpy:array", [False] * (size - 1) + [True])
    return p.new(f"{REGEX}Dfa", table, accepting, p.call("operator:mul", [{}], size))


def test_12_4_a_long_way_to_the_end(subject: Any) -> None:
    """300 steps are needed from the first state; of 2,000 others each is one step from the end,
    and can go through all of them before, up by a and down by c."""
    p = Program()
    p.see(p.call("builtins:len", p.call(f"{REGEX}remove_dead_states", chain(p, 301))))
    size = 2_000
    street = chain(p, size)
    p.call("numpy:copyto", street.table.T[ord("b")], [size - 1] * (size - 1) + [DEAD])
    p.call("numpy:copyto", street.table.T[ord("c")], [DEAD, *range(size - 2), DEAD])
    p.see(p.call("builtins:len", p.call(f"{REGEX}remove_dead_states", street)))
    assert subject.run(p) == [301, 2_000]


def test_12_4_hundreds_of_states_are_told_apart(subject: Any) -> None:
    """All states of a chain are at another distance from the end."""
    p = Program()
    p.see(p.call("builtins:len", p.call(f"{REGEX}minimise", chain(p, 130))))
    assert subject.run(p) == [130]


def test_12_4_no_checksum_tells_states_apart(subject: Any) -> None:
    """When `hash()` and all checksums say 7 to everything, states differ as before."""
    p = Program()
    with weak_hashes_say_7(p):
        small = p.call(f"{REGEX}minimise", chain(p, 5))
    p.see(p.call("builtins:len", small))
    assert subject.run(p) == [5]


def test_12_4_any_of_many_rules(subject: Any) -> None:
    """States 1 and 2 differ in one of twelve calls, whichever it is."""
    p = Program()
    table = [[DEAD] * 256 for _ in range(4)]
    table[0][97], table[0][98] = 1, 2
    array = p.call("numpy:array", table, dtype=p.name("numpy:int32"))
    accepting = p.call("numpy:array", [False, False, False, True])
    names = [f"rule {number:02}" for number in range(12)]
    for left in (*names, None):
        calls = [{}, dict.fromkeys(names, 3), {n: 3 for n in names if n != left}, {}]
        old = p.new(f"{REGEX}Dfa", array, accepting, calls)
        p.see(p.call("builtins:len", p.call(f"{REGEX}minimise", old)))
    assert subject.run(p) == [4] * 12 + [3]


def test_12_4_what_was_given_stays(subject: Any) -> None:
    """A dead state, and a rule that no text has, leave the new automaton; the old one is whole."""
    p = Program()
    table = p.call("numpy:full", [4, 256], DEAD, dtype=p.name("numpy:int32"))
    for state, target in ((0, 3), (2, 1), (3, 3)):
        table[state].fill(target)
    calls = [{"x": 1, "y": 2}, {}, {"x": 1}, {}]
    accepting = p.call("numpy:array", [False, True, False, False])
    old = p.new(f"{REGEX}Dfa", table, accepting, calls)
    no_rule = p.call("builtins:frozenset", ["x"])
    p.see(p.call("builtins:len", p.call(f"{REGEX}remove_dead_states", old, no_rule)))
    p.see(old.calls)
    p.see(p.call("operator:getitem", old.table.tolist(), 0)[0])
    p.see([old.table[state].max().item() for state in range(4)])
    assert subject.run(p) == [3, calls, 3, [3, DEAD, 1, 3]]


def test_12_4_calls_tell_states_apart(subject: Any) -> None:
    """States 1 and 2 read the same bytes; only by a call of y does one of them go on."""
    p = Program()
    table = [[DEAD] * 256 for _ in range(4)]
    table[0][97], table[0][98], table[1][99], table[2][99] = 1, 2, 3, 3
    array = p.call("numpy:array", table, dtype=p.name("numpy:int32"))
    accepting = p.call("numpy:array", [False, False, False, True])
    for calls in ([{}, {"y": 3}, {}, {}], [{}, {"y": 3}, {"y": 3}, {}]):
        old = p.new(f"{REGEX}Dfa", array, accepting, calls)
        p.see(p.call("builtins:len", p.call(f"{REGEX}minimise", old)))
    assert subject.run(p) == [4, 3]


def count_classes(rows: list[list[int]], accepting: list[bool], alive: set[int]) -> int:
    """How many living states words can tell apart (Moore's way)."""
    kind = {s: int(accepting[s]) for s in alive}
    while True:
        marks = {s: (kind[s], *(kind.get(t, DEAD) for t in rows[s])) for s in alive}
        numbers = {mark: i for i, mark in enumerate(sorted(set(marks.values())))}
        new = {s: numbers[marks[s]] for s in alive}
        if len(set(new.values())) == len(set(kind.values())):
            return len(set(new.values()))
        kind = new


# ------------------------------------------------------------------ JSON
def as_regex(node: ast.expr) -> str:
    """A pattern that was shown as text, in Python's notation. Nothing of it is run."""
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name), ast.dump(node)[:80]
    values = {k.arg: k.value for k in node.keywords}
    kind = node.func.id
    if kind == "Chars":
        ranges = ast.literal_eval(values["ranges"])
        body = "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in ranges if a <= b)
        return f"[{body}]" if body else "(?!)"
    if kind == "Repeat":
        low, high = ast.literal_eval(values["low"]), ast.literal_eval(values["high"])
        return f"(?:{as_regex(values['part'])}){{{low},{'' if high is None else high}}}"
    listed = values["parts" if kind == "Concat" else "choices"]
    assert kind in ("Concat", "Union") and isinstance(listed, ast.Tuple | ast.List)
    inner = list(map(as_regex, listed.elts))
    return "".join(inner) if kind == "Concat" else f"(?:{'|'.join(inner)})" if inner else "(?!)"


def shown(p: Program, pattern: Any) -> None:
    p.see(p.call("builtins:repr", pattern))


def read(text: str) -> re.Pattern[str]:
    return re.compile(as_regex(ast.parse(text, mode="eval").body))


@many
@given(width=st.integers(0, 3), ends=st.tuples(st.integers(0, 999), st.integers(0, 999)))
def test_12_9_random_limits(subject: Any, width: int, ends: tuple[int, int]) -> None:
    """Every number of that many digits, tried one by one, and some of one digit less or more."""
    low, high = sorted(end % 10**width for end in ends)
    p = Program()
    texts = [str(n).zfill(width) if width else "" for n in (low, high)]
    shown(p, p.call(f"{JSON}digits_between", *texts))
    pattern = read(subject.run(p)[0])
    for n in range(10**width):
        text = str(n).zfill(width) if width else ""
        assert (pattern.fullmatch(text) is not None) == (low <= n <= high), (texts, text)
    for size in {abs(width - 1), width + 1} - {width}:
        for digit in "0123456789" if size else [""]:
            assert pattern.fullmatch(digit.ljust(size, "0")) is None, (texts, size)


@many
@given(needed=st.lists(st.booleans(), max_size=4), others=st.booleans(), data=st.data())
def test_12_9_random_objects(
    subject: Any, needed: list[bool], others: bool, data: st.DataObject
) -> None:
    """Random lists of members, right and wrong."""
    if not needed and not others:
        return
    letters = "abcd"[: len(needed)]
    p = Program()
    members = [p.call(f"{PATTERNS}text", letter) for letter in letters]
    more = p.call(f"{PATTERNS}text", "x") if others else None
    comma = p.call(f"{PATTERNS}text", ",")
    shown(p, p.call(f"{JSON}object_pattern", members, needed, more, comma))
    pattern = read(subject.run(p)[0])
    for _ in range(30):
        parts = data.draw(st.lists(st.sampled_from([*letters, "x"]), min_size=1, max_size=5))
        named = [part for part in parts if part != "x"]
        right = (
            parts == named + ["x"] * (len(parts) - len(named))
            and named == sorted(set(named))
            and all(c in named for c, must in zip(letters, needed, strict=True) if must)
            and (others or "x" not in parts)
        )
        text = ",".join(parts)
        assert (pattern.fullmatch(text) is not None) == right, (needed, others, text)
        for wrong in ("," + text, text + ",", text.replace(",", ",,", 1) if "," in text else ""):
            assert pattern.fullmatch(wrong) is None, (needed, others, wrong)


def test_12_9_cases_do_not_double(subject: Any) -> None:
    """Sixteen members that may all be missing: 17 cases, and not 2**16."""
    p = Program()
    members = [p.call(f"{PATTERNS}text", letter) for letter in "abcdefghijklmnop"]
    comma = p.call(f"{PATTERNS}text", ",")
    made = p.call(f"{JSON}object_pattern", members, [False] * 16, None, comma)
    p.see(p.call("builtins:len", p.call("builtins:repr", made)))
    shown(p, made)
    size, text = subject.run(p)
    assert size < 200_000
    pattern = read(text)
    for right in ("a", "p", "a,p", "b,d,f", ",".join("abcdefghijklmnop")):
        assert pattern.fullmatch(right)
    for wrong in ("", "b,a", "a,", ",a", "a,a"):
        assert not pattern.fullmatch(wrong)


def test_12_9_members_stay_the_callers(subject: Any) -> None:
    """Both lists are read, and used for another object afterwards."""
    p = Program()
    members = p.call("builtins:list", [p.call(f"{PATTERNS}text", letter) for letter in "ab"])
    needed = p.call("builtins:list", [False, True])
    more, comma = p.call(f"{PATTERNS}text", "x"), p.call(f"{PATTERNS}text", ",")
    for _ in range(2):
        shown(p, p.call(f"{JSON}object_pattern", members, needed, more, comma))
    p.see([p.call("builtins:len", members), needed])
    first, second, left = subject.run(p)
    assert first == second and left == [2, [False, True]]


def test_12_9_numbers_of_ten_digits(subject: Any) -> None:
    """A few cases for each digit, and not one for each of nine billion numbers."""
    low, high = "0123456789", "9000000001"
    p = Program()
    shown(p, p.call(f"{JSON}digits_between", low, high))
    [text] = subject.run(p)
    assert len(text) < 400_000
    pattern, first, last = read(text), int(low), int(high)
    for number in (end + by for end in (first, last, 5_555_555_555) for by in (-1, 0, 1)):
        fits = first <= number <= last
        assert (pattern.fullmatch(str(number).zfill(10)) is not None) == fits, number


def test_12_9_a_dozen_other_members(subject: Any) -> None:
    """Behind a member as many others as there are, and none without a comma."""
    p = Program()
    letters = [p.call(f"{PATTERNS}text", letter) for letter in "ax,"]
    shown(p, p.call(f"{JSON}object_pattern", letters[:1], [True], letters[1], letters[2]))
    pattern = read(subject.run(p)[0])
    assert pattern.fullmatch("a" + ",x" * 12) and not pattern.fullmatch("a" + ",x" * 11 + "x")


# ------------------------------------------------------------------ stacks
def dfa(p: Program, rows: list[dict[str, int]], accepting: set[int], calls: Any) -> Any:
    """An automaton; `calls` says of some states where each rule leads."""
    table = [[DEAD] * 256 for _ in rows]
    for state, row in enumerate(rows):
        for char, target in row.items():
            table[state][ord(char)] = target
    flags = [state in accepting for state in range(len(rows))]
    array = p.call("numpy:array", table, dtype=p.name("numpy:int32"))
    return p.new(f"{REGEX}Dfa", array, p.call("numpy:array", flags),
                 [calls.get(s, {}) for s in range(len(rows))])  # fmt: skip


def lists(p: Program) -> Any:
    """A machine for `L = "[" (I ("," I)*)? "]"`, `I = "1" | L | W`, `W = "" | "w" W`."""
    rules = {
        "root": dfa(
            p, [{"[": 1}, {"]": 3}, {",": 4, "]": 3}, {}, {}], {3}, {1: {"I": 2}, 4: {"I": 2}}
        ),
        "I": dfa(p, [{"1": 1}, {}], {1}, {0: {"root": 1, "W": 1}}),
        "W": dfa(p, [{"w": 1}, {}, {}], {0, 2}, {1: {"W": 2}}),
    }
    return p.new(f"{PUSHDOWN}Pushdown", p.new(f"{PUSHDOWN}Machine", rules, "root"))


def legal(text: str) -> tuple[str, bool] | None:
    """What may follow a prefix of the language, and whether it may end; None if it is no prefix."""
    depth, item = 0, ""
    for index, char in enumerate(text):
        if depth == 0 and (index or char != "["):
            return None
        if char == "[" and item in ("", "start"):
            depth, item = depth + 1, "start"
        elif char == "1" and item == "start":
            item = "done"
        elif char == "w" and item in ("start", "w"):
            item = "w"
        elif char == "," and depth:
            item = "start"
        elif char == "]" and depth:
            depth, item = depth - 1, "done"
        else:
            return None
    if not text:
        return "[", False
    if depth == 0:
        return "", True
    follow = {"start": "1[w,]", "w": "w,]", "done": ",]"}[item]
    return "".join(sorted(follow)), False


@few
@given(text=st.text("[[[1w,]]", max_size=14))
def test_12_10_random_nested_lists(subject: Any, text: str) -> None:
    """At every place of a random text: exactly what may follow, and whether it may end."""
    while legal(text) is None:
        text = text[:-1]
    p = Program()
    walk = lists(p)
    state = walk.start
    for index in range(len(text) + 1):
        for char in "1[],w":
            p.see(walk.next(state, ord(char)))
        p.see(walk.is_accepting(state))
        if index < len(text):
            state = walk.next(state, ord(text[index]))
    seen = subject.run(p)
    for index in range(len(text) + 1):
        answers = seen[6 * index : 6 * index + 6]
        found = "".join(sorted(c for c, s in zip("1[],w", answers, strict=False) if s != DEAD))
        assert (found, answers[5]) == (
            "".join(sorted((legal(text[:index]) or ("", False))[0])),
            (legal(text[:index]) or ("", False))[1],
        ), text[:index]


def test_12_10_deep_right_recursion_stays_small(subject: Any) -> None:
    """Hundreds of w's: the configurations do not grow with them."""
    p = Program()
    walk = lists(p)
    state = walk.next(walk.start, ord("["))
    for _ in range(150):
        state = walk.next(state, ord("w"))
    p.see(p.call("builtins:len", walk))
    assert subject.run(p)[0] < 20


@few
@given(seed=st.integers(0, 2**32 - 1))
def test_12_10_stacks_are_sorted(subject: Any, seed: int) -> None:
    """Some of a hundred stacks, which read and do not call: they are their own closure, in order,
    however they are named."""
    draw = random.Random(seed)
    pairs = [(draw.randrange(100), draw.randrange(100)) for _ in range(20)]
    p = Program()
    walk = lists(p)
    stack, stacks = p.name(f"{PUSHDOWN}BOTTOM"), []
    for _ in range(100):
        stack = walk.push(2, stack)
        stacks.append(stack)
    for pair in pairs:
        p.see(p.call("builtins:list", walk.closure([stacks[index] for index in pair])))
        p.see([stacks[index] for index in sorted(set(pair))])
    seen = subject.run(p)
    assert seen[::2] == seen[1::2]


def test_12_10_stacks_that_come_one_at_a_time(subject: Any) -> None:
    """From an iterator as from a list, which stays what it was."""
    p = Program()
    walk = lists(p)
    bottom = p.name(f"{PUSHDOWN}BOTTOM")
    stacks = p.call("builtins:list", [walk.push(walk.machine.start, bottom), walk.push(3, bottom)])
    p.see(p.call("builtins:list", walk.closure(p.call("builtins:iter", stacks))))
    p.see(p.call("builtins:list", walk.closure(stacks)))
    p.see(p.call("builtins:len", stacks))
    one, other, left = subject.run(p)
    assert one == other and len(one) == 2 and left == 2


def test_12_10_as_many_stacks_as_may_be(subject: Any) -> None:
    """The start and 999 readings of one letter are a thousand."""
    p = Program()
    names = [f"r{index}" for index in range(999)]
    rules = {"root": dfa(p, [{}, {"b": 2}, {}], {2}, {0: dict.fromkeys(names, 1)})}
    rules |= dict.fromkeys(names, dfa(p, [{"a": 1}, {}], {1}, {}))
    walk = p.new(f"{PUSHDOWN}Pushdown", p.new(f"{PUSHDOWN}Machine", rules, "root"))
    p.see(walk.next(walk.start, ord("a")))
    (state,) = subject.run(p)
    assert type(state) is int and state != DEAD


def test_12_10_too_many_stacks_are_refused(subject: Any) -> None:
    """A thousand readings of one letter, and one more."""
    p = Program()
    names = [f"r{index}" for index in range(1_001)]
    rules = {"root": dfa(p, [{}, {"b": 2}, {}], {2}, {0: dict.fromkeys(names, 1)})}
    rules |= dict.fromkeys(names, dfa(p, [{"a": 1}, {}], {1}, {}))
    machine = p.new(f"{PUSHDOWN}Machine", rules, "root")
    p.refuse(f"{REGEX}TooLarge", p.name(f"{PUSHDOWN}Pushdown"), machine)
    assert subject.run(p) == []


def test_12_10_a_thousand_rules_end_at_once(subject: Any) -> None:
    """999 stacks one below the other, whose tops may all end: with the empty one MAX_STACKS."""
    p = Program()
    rules = {"root": dfa(p, [{"a": 0}], {0}, {})}
    walk = p.new(f"{PUSHDOWN}Pushdown", p.new(f"{PUSHDOWN}Machine", rules, "root"))
    stack = p.name(f"{PUSHDOWN}BOTTOM")
    for _ in range(999):
        stack = walk.push(0, stack)
    p.see(p.call("builtins:len", walk.closure([stack])))
    assert subject.run(p) == [1_000], "a stack below is missing"


@pytest.mark.parametrize("height", [999, 1_000])
def test_12_10_stacks_that_do_not_stay_count_too(subject: Any, height: int) -> None:
    """Stacks whose tops end and read nothing: only BOTTOM is returned, but all were found."""
    p = Program()
    walk = p.new(f"{PUSHDOWN}Pushdown", p.new(f"{PUSHDOWN}Machine", {
        "root": dfa(p, [{"a": 1}, {}], {1}, {})}, "root"))  # fmt: skip
    stack = p.name(f"{PUSHDOWN}BOTTOM")
    for _ in range(height):
        stack = walk.push(1, stack)
    if height < 1_000:
        p.see(p.call("builtins:list", walk.closure([stack])))
    else:
        p.refuse(f"{REGEX}TooLarge", walk.closure, [stack])
    p.see(p.call("builtins:list", walk.closure([])))
    assert subject.run(p) == ([[0], []] if height < 1_000 else [[]])
