"""Compile a pattern into the smallest automaton that recognises it, byte by byte.

    pattern        (ab|ac)*            the legal texts
      │ Thompson                       one small machine for each part, joined by free moves
      ▼
    Nfa            several moves for one byte, and free moves, which read nothing
      │ subset construction            a state of the new machine = a set of states of the old one
      ▼
    Dfa            one move for each byte: a table [S, 256]
      │ remove dead states, merge equal ones
      ▼
    smallest Dfa   every state can still reach the end, and no two mean the same

Bytes, not characters: a token of the model may end in the middle of a character.

Source: Thompson 1968, "Regular expression search algorithm"; Hopcroft 1971, "An n log n algorithm
for minimizing states in a finite automaton".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from mini_vllm.structured_output.patterns import (
    Anchor,
    Call,
    Chars,
    Concat,
    Pattern,
    Repeat,
    Union,
)

DEAD = -1
MAX_STATES = 20_000
"""Most states of one automaton before it is made small."""
MAX_NFA_STATES = 200_000
MAX_WORK = 300_000
"""Most members of closures in one subset construction. This bounds its time."""

ByteRange = tuple[int, int]
Symbol = int | str
"""A class of bytes that no move tells apart, or the name of a rule."""


class TooLarge(ValueError):
    """The automaton would have too many states."""


# ---------------------------------------------------------------- characters to bytes
@lru_cache(maxsize=4096)  # counted repeats ask for the same characters thousands of times
def utf8_ranges(low: int, high: int) -> list[tuple[ByteRange, ...]]:
    """Byte ranges that together spell the code points from `low` to `high` in UTF-8, and no other.

    One entry is one run of 1 to 4 bytes, each anywhere in its own range::

        U+0041 .. U+00E9   ->   [41-7F]   and   [C2-C2][80-BF]   and   [C3-C3][80-A9]

    A run can only be a product of ranges, so the interval is cut until it is one: where the number
    of bytes changes (after 7F, 7FF, FFFF), around the surrogates D800 to DFFF, which UTF-8 does
    not have, and then where a leading part changes while what follows is not complete.
    Continuation bytes carry 6 bits each. The work is in the cuts, not in the characters between.

    Args:
        low, high: code points, both included; an empty interval gives [].

    Source: the technique is Ken Thompson's, as in Go's regexp/syntax and Rust's utf8-ranges.
    """
    if low > high:
        return []
    if low <= 0xDFFF and high >= 0xD800:
        return utf8_ranges(low, 0xD7FF) + utf8_ranges(0xE000, high)
    for border in (0x7F, 0x7FF, 0xFFFF):
        if low <= border < high:
            return utf8_ranges(low, border) + utf8_ranges(border + 1, high)
    for shift in range(6, 6 * len(chr(low).encode()), 6):
        tail = (1 << shift) - 1
        if low >> shift != high >> shift:
            if low & tail:
                return utf8_ranges(low, low | tail) + utf8_ranges((low | tail) + 1, high)
            if high & tail != tail:
                start = high & ~tail
                return utf8_ranges(low, start - 1) + utf8_ranges(start, high)
    return [tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))]


# ---------------------------------------------------------------- Thompson
@dataclass
class Nfa:
    """A machine that may be in several states at once.

    Attributes:
        free: for each state its moves that read nothing: `(target, condition)`. The condition is
            None, or "start" or "end" for a move that is allowed only there.
        moves: for each state its moves that read: `((low, high), target)` for a byte,
            `(name, target)` for a text of a rule.
    """

    free: list[list[tuple[int, str | None]]] = field(default_factory=list)
    moves: list[list[tuple[ByteRange | str, int]]] = field(default_factory=list)

    def new_state(self) -> int:
        """Add a state without moves.

        Raises:
            TooLarge: for more than MAX_NFA_STATES.
        """
        if len(self.free) >= MAX_NFA_STATES:
            raise TooLarge(f"needs more than {MAX_NFA_STATES:,} states; shorten its repeats")
        self.free.append([])
        self.moves.append([])
        return len(self.free) - 1

    def join(self, source: int, target: int, condition: str | None = None) -> None:
        """Let `source` go on to `target` without reading."""
        self.free[source].append((target, condition))

    def add(self, pattern: Pattern) -> tuple[int, int]:
        """Build the machine of `pattern` from the machines of its parts.

        Returns `(start, end)`: the texts that lead from start to end are those of the pattern.
        Nothing leads into start, nothing out of end, so machines can be joined without harm::

            Concat   start -> [a] -> [b] -> end        Union   start -> [a] -> end
            Repeat   low copies in a row, then                 start -> [b] -> end
                     high - low that may each be left for the end,
                     or, without a limit, one that may be gone through again and again
            Chars    start =bytes=> end, one row of states for each run of `utf8_ranges`
            Call     start =name=> end                 Anchor  start -"start" or "end"-> end

        An Anchor's move has the condition "end" where its ``at_end`` is True, else "start".
        Every copy is a machine of its own. The empty Concat is a free move; the empty Union has
        no way from start to end. Moves are `new_state`, `join` and entries of `self.moves`.
        """
        start, end = self.new_state(), self.new_state()
        match pattern:
            case Chars(ranges):
                for low, high in ranges:
                    for run in utf8_ranges(low, high):
                        self._add_run(start, run, end)
            case Call(rule):
                self.moves[start].append((rule, end))
            case Anchor(at_end):
                self.join(start, end, "end" if at_end else "start")
            case Concat(parts):
                self.join(self._add_in_a_row(start, parts), end)
            case Union(choices):
                for choice in choices:
                    first, last = self.add(choice)
                    self.join(start, first)
                    self.join(last, end)
            case Repeat(part, low, high):
                here = self._add_in_a_row(start, [part] * low)
                if high is None:
                    first, last = self.add(part)
                    hub = self.new_state()
                    self.join(here, hub)
                    self.join(hub, first)
                    self.join(last, hub)
                    here = hub
                else:
                    for _ in range(high - low):
                        self.join(here, end)
                        here = self._add_in_a_row(here, [part])
                self.join(here, end)
        return start, end

    def _add_in_a_row(self, here: int, parts: Iterable[Pattern]) -> int:
        """Append the machines of `parts` to a state; returns the end state of the last one."""
        for part in parts:
            first, last = self.add(part)
            self.join(here, first)
            here = last
        return here

    def _add_run(self, here: int, run: tuple[ByteRange, ...], end: int) -> None:
        """States that read one byte of each range in turn."""
        for byte_range in run[:-1]:
            state = self.new_state()
            self.moves[here].append((byte_range, state))
            here = state
        self.moves[here].append((run[-1], end))


def check_size(pattern: Pattern, limit: int = MAX_NFA_STATES) -> int:
    """An estimate of the number of states that `Nfa.add` will make.

    Nested repeats multiply: three of 300 inside one another make 27 million states.

    Raises:
        TooLarge: for more than `limit`.
    """
    match pattern:
        case Chars(ranges):
            size = 2 + 2 * len(ranges)
        case Concat(parts) | Union(parts):
            size = 2
            for part in parts:
                size += check_size(part, limit - size)
        case Repeat(part, low, high):
            size = 3 + check_size(part, limit) * max(low + 1 if high is None else high, 1)
        case _:
            size = 2
    if size > limit:
        raise TooLarge(f"needs more than {MAX_NFA_STATES:,} states; shorten it")
    return size


# ---------------------------------------------------------------- subset construction
@dataclass
class Dfa:
    """A machine that is in one state at a time; it starts in state 0.

    Attributes:
        table: [S, 256] int32, the next state for each byte, or DEAD.
        accepting: [S] bool, whether the text may end here.
        calls: for each state the rules that may be called here, with the state after the call.
    """

    table: np.ndarray
    accepting: np.ndarray
    calls: list[dict[str, int]]

    def __len__(self) -> int:
        return len(self.table)


def epsilon_closure(nfa: Nfa, states: Iterable[int], at: tuple[str, ...] = ()) -> frozenset[int]:
    """All states that can be reached from `states` without reading, `states` included.

    Args:
        at: which conditional moves are open: "start", "end", both or none.
    """
    reached = set(states)
    todo = list(reached)
    while todo:
        for target, condition in nfa.free[todo.pop()]:
            if target not in reached and (condition is None or condition in at):
                reached.add(target)
                todo.append(target)
    return frozenset(reached)


def byte_classes(nfa: Nfa) -> np.ndarray:
    """The class of each byte, [256]: no move distinguishes bytes of one class.

    Classes are numbered in the order of their bytes, so a range of bytes is a range of classes.
    """
    borders = {0}
    for moves in nfa.moves:
        for label, _ in moves:
            if not isinstance(label, str):
                borders.update((label[0], label[1] + 1))
    starts = np.zeros(257, dtype=np.int64)
    starts[list(borders)] = 1
    return starts[:256].cumsum() - 1


def subset_construction(nfa: Nfa, start: int, end: int, max_states: int = MAX_STATES) -> Dfa:
    """The automaton whose states are the sets of states that `nfa` can be in together.

    State 0 is the closure of `start`, with the moves open that are open at the start. From a set,
    a symbol (a class of bytes or a rule) leads to the closure of all that its members reach by
    it (`successors`). A set accepts if `end` is among what it reaches with the moves open that
    are open at the end; for state 0 with the moves open that are open at the start or the end, for
    the empty text begins and ends there. Two sets are one state if they are equal; equal hashes do
    not make them so. `make_dfa` makes the tables.

    Args:
        max_states: at most so many sets; `.*a.{18}` alone has 2**19.

    Raises:
        TooLarge: for more sets, or if the closures have more than MAX_WORK members together:
            as soon as that is known, and not when all sets are built. Whether a set that comes up
            again counts again is left open.
    """
    class_of = byte_classes(nfa)
    sets = [epsilon_closure(nfa, [start], ("start",))]
    number = {sets[0]: 0}
    rows: list[dict[Symbol, int]] = []
    work = 0
    while len(rows) < len(sets):
        row = {}
        for symbol, members in successors(nfa, sets[len(rows)], class_of).items():
            reached = epsilon_closure(nfa, members)
            work += len(reached)
            if reached not in number:
                number[reached] = len(sets)
                sets.append(reached)
            row[symbol] = number[reached]
        rows.append(row)
        if len(sets) > max_states or work > MAX_WORK:
            raise TooLarge(f"needs more than {max_states:,} states; shorten its counted repeats")
    accepting = [end in epsilon_closure(nfa, members, ("end",)) for members in sets]
    accepting[0] = end in epsilon_closure(nfa, [start], ("start", "end"))
    return make_dfa(rows, class_of, accepting)


def successors(
    nfa: Nfa, members: Iterable[int], class_of: np.ndarray
) -> dict[Symbol, frozenset[int]]:
    """The targets of each symbol from a set of states, before free moves are followed."""
    classes: list[int] = class_of.tolist()
    reached: defaultdict[Symbol, set[int]] = defaultdict(set)
    for state in members:
        for label, target in nfa.moves[state]:
            if isinstance(label, str):
                reached[label].add(target)
                continue
            for symbol in range(classes[label[0]], classes[label[1]] + 1):
                reached[symbol].add(target)
    return {symbol: frozenset(targets) for symbol, targets in reached.items()}


def make_dfa(rows: list[dict[Symbol, int]], class_of: np.ndarray, accepting: list[bool]) -> Dfa:
    """The tables of an automaton: the columns of byte classes are expanded to 256 bytes."""
    compact = np.full((len(rows), class_of[-1] + 1), DEAD, dtype=np.int32)
    calls: list[dict[str, int]] = []
    for state, row in enumerate(rows):
        calls.append({symbol: target for symbol, target in row.items() if isinstance(symbol, str)})
        for symbol, target in row.items():
            if not isinstance(symbol, str):
                compact[state, symbol] = target
    return Dfa(compact[:, class_of], np.array(accepting), calls)


# ---------------------------------------------------------------- smaller
def remove_dead_states(dfa: Dfa, empty_rules: frozenset[str] = frozenset()) -> Dfa:
    """Drop every state from which no accepting state can be reached, and all moves to it.

    A mask must never allow a byte after which no text can end. The states that stay keep their
    order (`merge_states`), so the start is state 0 again. A state that cannot be reached from the
    start stays all the same, if it can reach an accepting one.

    Args:
        empty_rules: rules that no text has; calls of them lead nowhere.

    Raises:
        ValueError: if nothing is left; it says "no text matches", for a user reads it.
    """
    calls = [
        {rule: after for rule, after in row.items() if rule not in empty_rules} for row in dfa.calls
    ]
    before: list[set[int]] = [set() for _ in range(len(dfa))]
    for state in range(len(dfa)):
        for target in ({*dfa.table[state].tolist()} - {DEAD}) | set(calls[state].values()):
            before[target].add(state)
    alive = set(np.flatnonzero(dfa.accepting).tolist())
    todo = list(alive)
    while todo:
        found = before[todo.pop()] - alive
        alive |= found
        todo += found
    if 0 not in alive:
        raise ValueError("no text matches")
    groups = [state if state in alive else DEAD for state in range(len(dfa))]
    return merge_states(Dfa(dfa.table, dfa.accepting, calls), groups)


def minimise(dfa: Dfa) -> Dfa:
    """Merge the states that no text can tell apart (Hopcroft).

    Begin with two groups, accepting and not. Take a group as splitter: a group of which one part
    is led into the splitter by some symbol, and the other part is not, falls in two. When no
    group can be split any more, each is one state. After a split it is enough to look at the
    smaller half again, which makes it fast: n log n. Groups are compared as they are, never by a
    hash or checksum.

    `predecessors` gives the states that each symbol leads to a state; `merge_states` makes the
    new automaton. All states of `dfa` must be alive. The group of state 0 becomes state 0.
    """
    sources = predecessors(dfa)
    group_of = dfa.accepting.astype(int).tolist()
    groups = [{s for s, group in enumerate(group_of) if group == g} for g in (0, 1)]
    todo = {0, 1}
    while todo:
        splitter = list(groups[todo.pop()])
        for by_target in sources:
            led: defaultdict[int, set[int]] = defaultdict(set)
            for target in splitter:
                for state in by_target.get(target, ()):
                    led[group_of[state]].add(state)
            for group, part in led.items():
                if len(part) == len(groups[group]):
                    continue
                groups[group] -= part
                new = len(groups)
                groups.append(part)
                for state in part:
                    group_of[state] = new
                smaller = min(group, new, key=lambda index: len(groups[index]))
                todo.add(new if group in todo else smaller)
    return merge_states(dfa, group_of)


def predecessors(dfa: Dfa) -> list[dict[int, list[int]]]:
    """For each symbol and each target state: the states from which the symbol leads there.

    The symbols are the rules and the classes of bytes with equal columns in the table.
    """
    columns = [column.tolist() for column in distinct_columns(dfa.table)[0]]
    names = sorted({rule for row in dfa.calls for rule in row})
    columns += [[row.get(name, DEAD) for row in dfa.calls] for name in names]
    sources = []
    for column in columns:
        by_target: defaultdict[int, list[int]] = defaultdict(list)
        for state, target in enumerate(column):
            by_target[target].append(state)
        sources.append(dict(by_target))
    return sources


def distinct_columns(table: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The distinct columns of a table, and for each column the index of its distinct column.

    Bytes with the same moves in every state have equal columns, so few of the 256 remain.
    """
    number: dict[bytes, int] = {}
    columns: list[np.ndarray] = []
    which = np.empty(table.shape[1], dtype=np.int64)
    for index, column in enumerate(np.ascontiguousarray(table.T)):
        key = column.tobytes()
        if key not in number:
            number[key] = len(columns)
            columns.append(column)
        which[index] = number[key]
    return columns, which


def merge_states(dfa: Dfa, groups: list[int]) -> Dfa:
    """One state for each group, numbered in the order of their first members.

    Args:
        groups: the group of each state, or DEAD to drop it.
    """
    order: dict[int, int] = {}
    members: list[int] = []
    for state, group in enumerate(groups):
        if group != DEAD and group not in order:
            order[group] = len(order)
            members.append(state)
    rename = np.full(len(dfa) + 1, DEAD, dtype=np.int32)  # the last entry is DEAD's own
    for state, group in enumerate(groups):
        rename[state] = order.get(group, DEAD)
    calls = [
        {rule: int(rename[after]) for rule, after in dfa.calls[state].items()} for state in members
    ]
    calls = [{rule: after for rule, after in row.items() if after != DEAD} for row in calls]
    return Dfa(rename[dfa.table[members]], dfa.accepting[members], calls)


def determinise(pattern: Pattern, max_states: int = MAX_STATES) -> Dfa:
    """Check the size, then apply Thompson's construction and the subset construction.

    Raises:
        TooLarge: if it needs too many states.
    """
    check_size(pattern)
    nfa = Nfa()
    return subset_construction(nfa, *nfa.add(pattern), max_states)


def compile_pattern(pattern: Pattern, max_states: int = MAX_STATES) -> Dfa:
    """The smallest automaton of a pattern.

    Raises:
        TooLarge: if it needs too many states.
        ValueError: if no text matches.
    """
    return minimise(remove_dead_states(determinise(pattern, max_states)))


def matches(dfa: Dfa, data: bytes) -> bool:
    """Whether an automaton without calls accepts `data`."""
    state = 0
    for byte in data:
        state = int(dfa.table[state, byte])
        if state == DEAD:
            return False
    return bool(dfa.accepting[state])
