"""Builders for the tests of phase 12. The story: a vocabulary of a few tokens that can be read at a
glance, and automata small enough to be drawn. Each task is judged with its own function alone: what
the others would do is built here by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import numpy as np

DEAD = -1
TEXTS = [b"", b"a", b"b", b"ab", b"ba", b"abb", b"c", b"\xc3", b"\xc3\xa9", b""]
END, OTHER_END = 0, 9


class HandMade:
    """An automaton as a list of rows, `{byte: next state}`, with the interface of Pushdown."""

    start = 0

    def __init__(self, rows: Sequence[dict[str, int]], accepting: Iterable[int]) -> None:
        self.rows = [{ord(char): state for char, state in row.items()} for row in rows]
        self.accepting = set(accepting)
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self.rows)

    def next(self, state: int, byte: int) -> int:
        return self.rows[state].get(int(byte), DEAD)

    def step(self, states: np.ndarray, data: np.ndarray) -> np.ndarray:
        import numpy as np

        pairs = zip(states.tolist(), data.tolist(), strict=True)
        return np.array([self.next(state, byte) for state, byte in pairs], dtype=np.int32)

    def is_accepting(self, state: int) -> bool:
        return state in self.accepting


class HandIndex:
    """What NativeGrammar asks of a TokenIndex, computed token by token."""

    def __init__(self, automaton: HandMade, texts: Sequence[bytes] = TEXTS) -> None:
        from mini_vllm.structured_output.token_index import TokenTable

        self.automaton, self.texts, self.tokens = automaton, texts, TokenTable(texts)

    def walk(self, state: int, token: int) -> int:
        text = self.texts[token] if 0 <= token < len(self.texts) else b""
        for byte in text:
            state = self.automaton.next(state, byte) if state != DEAD else DEAD
        return state if text else DEAD

    def row(self, state: int) -> np.ndarray:
        import numpy as np

        word = sum(1 << t for t in range(len(self.texts)) if self.walk(state, t) != DEAD)
        return np.array([word], dtype=np.int32)


def run_nfa(nfa: Any, start: int, end: int, data: bytes) -> bool:
    """Whether the machine leads from start to end over `data`, all of it."""

    def close(states: set[int], at: set[str]) -> set[int]:
        todo = list(states)
        while todo:
            for target, condition in nfa.free[todo.pop()]:
                if target not in states and (condition is None or condition in at):
                    states.add(target)
                    todo.append(target)
        return states

    places = [{"start"} if i == 0 else set() for i in range(len(data) + 1)]
    places[-1] = places[-1] | {"end"}
    states = close({start}, places[0])
    for index, byte in enumerate(data):
        reached = {
            target
            for state in states
            for label, target in nfa.moves[state]
            if not isinstance(label, str) and label[0] <= byte <= label[1]
        }
        states = close(reached, places[index + 1])
    return end in states


def allowed(words: Any, size: int = len(TEXTS)) -> list[int]:
    """The tokens whose bits are set, also those behind the vocabulary."""
    import numpy as np

    flat = [int(word) for word in np.asarray(words).reshape(-1)]
    return [32 * i + bit for i, word in enumerate(flat) for bit in range(32) if word >> bit & 1]


@pytest.fixture
def lab() -> Any:
    return SimpleNamespace(
        HandMade=HandMade, HandIndex=HandIndex, run_nfa=run_nfa, allowed=allowed, TEXTS=TEXTS,
        END=END, OTHER_END=OTHER_END, DEAD=DEAD,
    )  # fmt: skip
