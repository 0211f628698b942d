"""Rules that call one another: an automaton with a stack, whose states are computed on demand.

A finite automaton cannot count brackets. So a grammar becomes one small automaton for each rule,
and a stack that remembers where to continue when a rule is complete::

    value = "[" (value ("," value)*)? "]" | "1"           text so far: [ [ 1

    stack   after the value of the outer list   ▸   after the value of the inner list
            "," or "]" may come                     "," or "]" may come       <- top

Calling a rule pushes the state after the call and goes to the rule's start; a rule that may end
pops. Both happen without reading, so between two bytes several stacks may be possible at once.
A *configuration* is the set of all of them. It gets a number when it first occurs, and is then used
like a state of an ordinary automaton: its row of 256 next configurations is computed once.

Source: Tomita's stacks with shared tails, which XGrammar (arXiv 2411.15100) uses, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from mini_vllm.structured_output.patterns import Rules
from mini_vllm.structured_output.regex_automaton import (
    DEAD,
    MAX_NFA_STATES,
    MAX_STATES,
    Dfa,
    TooLarge,
    check_size,
    determinise,
    distinct_columns,
    minimise,
    remove_dead_states,
)

BOTTOM = 0
"""The empty stack: the text may end."""
UNKNOWN = -2
MAX_STACKS = 1_000
"""Most stacks of one configuration; a grammar that needs more is refused as too ambiguous."""
MAX_CONFIGURATIONS = 100_000


class Machine:
    """The automata of all rules, one after the other in one table.

    Attributes:
        table: [T, 256] int32, the next state in the same rule, or DEAD.
        accepting: whether the rule may end in a state.
        calls: of each state, `(first state of the called rule, state after the call)`.
        passing: whether a state only returns: it accepts, and has no moves and no calls.
        start: the first state of the root.
    """

    def __init__(self, dfas: Mapping[str, Dfa], root: str) -> None:
        first, size = {}, 0
        for name, dfa in dfas.items():
            first[name], size = size, size + len(dfa)
        self.start = first[root]
        self.table = np.concatenate(
            [np.where(dfa.table == DEAD, DEAD, dfa.table + first[n]) for n, dfa in dfas.items()]
        ).astype(np.int32)
        self.accepting = np.concatenate([dfa.accepting for dfa in dfas.values()]).tolist()
        self.calls = [
            [(first[rule], after + first[name]) for rule, after in row.items()]
            for name, dfa in dfas.items()
            for row in dfa.calls
        ]
        self.reads = (self.table != DEAD).any(axis=1).tolist()
        self.passing = [
            accepts and not reads and not calls
            for accepts, reads, calls in zip(self.accepting, self.reads, self.calls, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + 200 * len(self.accepting)


class Pushdown:
    """All stacks of one grammar that have occurred, and the moves between configurations.

    Attributes:
        start: the configuration before the first byte.
        table: [C, 256] int32, the next configuration for each byte, or DEAD; UNKNOWN in rows that
            are not computed yet. It grows.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._frames: list[tuple[int, int]] = [(DEAD, DEAD)]  # of each stack: top state, the rest
        self._stacks: dict[tuple[int, int], int] = {}
        self._configurations: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self.table = np.full((16, 256), UNKNOWN, dtype=np.int32)
        self.start = self._number([self.push(machine.start, BOTTOM)])

    def __len__(self) -> int:
        return len(self._configurations)

    @property
    def nbytes(self) -> int:
        stacks = 200 * (len(self._frames) + len(self._configurations))
        return self.machine.nbytes + self.table.nbytes + stacks

    def push(self, state: int, below: int) -> int:
        """The stack with `state` on top of the stack `below`; equal stacks have equal numbers."""
        frame = (state, below)
        if frame not in self._stacks:
            self._stacks[frame] = len(self._frames)
            self._frames.append(frame)
        return self._stacks[frame]

    def closure(self, stacks: Iterable[int]) -> tuple[int, ...]:
        """All stacks that calls and returns can make of `stacks`, sorted.

        From a stack with `state` on top of `below`, without reading a byte:

        - if the rule may end in `state`, `below` goes on;
        - each call `(first, after)` of `state` makes a stack with `first` on top of `after` on top
          of `below`. If `after` only passes on, it is left out: a rule that ends in a call of
          itself then needs no deeper stack (a tail call).

        BOTTOM goes nowhere. Of the result only those stay that mean something: BOTTOM, and stacks
        whose top can read a byte.

        Raises:
            TooLarge: for more than MAX_STACKS stacks: all that were found count, BOTTOM and those
                that do not stay included. It comes as soon as that is known: each call may double
                them.
        """
        # TODO 12.10
        raise NotImplementedError(
            "TODO 12.10: write Pushdown.closure in labs/12-structured-output/pushdown.py"
            " (phase 12, 02-mini-build.md#task-10)"
        )

    def is_accepting(self, configuration: int) -> bool:
        """Whether the text may end here."""
        return BOTTOM in self._configurations[configuration]

    def step(self, configurations: np.ndarray, data: np.ndarray) -> np.ndarray:
        """The next configurations, [N], of [N] configurations and [N] bytes; DEAD for none."""
        after = self.table[configurations, data]
        unknown = np.unique(configurations[after == UNKNOWN])
        if len(unknown):
            for configuration in unknown.tolist():
                self._fill_row(configuration)
            after = self.table[configurations, data]
        return after

    def next(self, configuration: int, byte: int) -> int:
        """The configuration after one byte, or DEAD."""
        after = self.table.item(configuration, byte)
        if after == UNKNOWN:
            self._fill_row(configuration)
            after = self.table.item(configuration, byte)
        return after

    def _fill_row(self, configuration: int) -> None:
        """Compute the next configuration of each byte: move every stack's top, then close."""
        stacks = [s for s in self._configurations[configuration] if s != BOTTOM]
        row = np.full(256, DEAD, dtype=np.int32)
        if stacks:
            tops = [self._frames[stack][0] for stack in stacks]
            moves, column_of = distinct_columns(self.machine.table[tops])
            targets = []
            for states in moves:
                after = [
                    self.push(state, self._frames[stack][1])
                    for stack, state in zip(stacks, states.tolist(), strict=True)
                    if state != DEAD
                ]
                targets.append(self._number(after) if after else DEAD)
            row = np.array(targets, dtype=np.int32)[column_of]
        self.table[configuration] = row

    def _number(self, stacks: list[int]) -> int:
        """The number of the configuration that is the closure of `stacks`."""
        closed = self.closure(stacks)
        if closed not in self._numbers:
            if len(self) >= MAX_CONFIGURATIONS:
                raise TooLarge(f"met more than {MAX_CONFIGURATIONS:,} configurations")
            if len(self) == len(self.table):
                more = np.full_like(self.table, UNKNOWN)
                self.table = np.concatenate([self.table, more])
            self._numbers[closed] = len(self)
            self._configurations.append(closed)
        return self._numbers[closed]


# ---------------------------------------------------------------- from rules
def compile_rules(
    rules: Rules,
    root: str = "root",
    max_states: int = MAX_STATES,
    can_write: np.ndarray | None = None,
) -> Machine:
    """Compile every rule into an automaton, and check that the grammar can be executed.

    Args:
        can_write: [256] bool, the bytes that the vocabulary has; moves by other bytes are removed.

    Raises:
        TooLarge: if a rule, or all together, need more than `max_states` states.
        ValueError: if no text matches, or a rule calls itself before it has read anything.
    """
    check_total_size(rules)
    dfas: dict[str, Dfa] = {}
    room = max_states
    for name, pattern in rules.items():
        try:
            dfas[name] = determinise(pattern, room)
        except TooLarge as error:
            where = "" if name == root else f"rule {name!r} "
            raise TooLarge(f"{where}{error} (limit for all rules: {max_states:,})") from None
        room -= len(dfas[name])
    if root in empty_rules(dfas):
        raise ValueError("cannot be satisfied: no text matches")
    lacking_bytes = [] if can_write is None else np.flatnonzero(~can_write).tolist()
    for dfa in dfas.values():
        dfa.table[:, lacking_bytes] = DEAD
    empty = empty_rules(dfas)
    if root in empty:
        lacking = ", ".join(f"0x{byte:02X}" for byte in lacking_bytes[:8])
        raise ValueError(f"cannot be written: the vocabulary has no token with byte {lacking}")
    dfas = {
        name: minimise(remove_dead_states(dfa, empty))
        for name, dfa in dfas.items()
        if name not in empty
    }
    check_left_recursion(dfas)
    return Machine(dfas, root)


def check_total_size(rules: Rules) -> None:
    """Raises TooLarge for rules that are too large by an estimate, before they are compiled."""
    if sum(map(check_size, rules.values())) > MAX_NFA_STATES:
        raise TooLarge(f"has {len(rules):,} rules of more than {MAX_NFA_STATES:,} states together")


def empty_rules(dfas: Mapping[str, Dfa]) -> frozenset[str]:
    """The rules that no finite text matches: `a = "x" a` never ends.

    A text matches a rule if bytes, and calls of rules that some text matches, lead to an accepting
    state.
    """
    with_text: set[str] = set()
    while True:
        more = {
            name
            for name, dfa in dfas.items()
            if name not in with_text
            and any(dfa.accepting[state] for state in _reachable(dfa, with_text, reading=True))
        }
        if not more:
            return frozenset(dfas.keys() - with_text)
        with_text |= more


class LeftRecursion(ValueError):
    """Left-recursive rules, which cannot be executed from left to right."""


def check_left_recursion(dfas: Mapping[str, Dfa]) -> None:
    """Refuse rules that call themselves before they read a byte: their stacks would grow for ever.

    Raises:
        LeftRecursion: names the rules.
    """
    nullable: set[str] = set()  # rules that the empty text matches
    grown = True
    while grown:
        more = {
            name
            for name, dfa in dfas.items()
            if any(dfa.accepting[state] for state in _reachable(dfa, nullable, reading=False))
        }
        grown, nullable = more > nullable, more
    first_calls = {
        name: {
            rule for state in _reachable(dfa, nullable, reading=False) for rule in dfa.calls[state]
        }
        for name, dfa in dfas.items()
    }
    harmless = {""}
    while harmless:  # a rule is harmless if all rules that it calls first are
        harmless = {name for name, called in first_calls.items() if not called & set(first_calls)}
        for name in harmless:
            del first_calls[name]
    if first_calls:
        names = ", ".join(repr(name) for name in first_calls)
        raise LeftRecursion(
            f"left recursion in {names}: a rule calls itself before it has read a character; "
            "put a literal or a class before the call"
        )


def _reachable(dfa: Dfa, callable_rules: set[str], reading: bool) -> set[int]:
    """The states that are reachable from the start by calls of `callable_rules`, and by bytes if
    `reading`."""
    reached, todo = {0}, [0]
    while todo:
        state = todo.pop()
        targets = {after for rule, after in dfa.calls[state].items() if rule in callable_rules}
        if reading:
            targets |= set(dfa.table[state].tolist()) - {DEAD}
        todo += targets - reached
        reached |= targets
    return reached
