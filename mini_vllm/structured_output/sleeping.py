"""A grammar that is inactive during the model's reasoning, and starts after its end tag.

::

    tokens    "So"  ", "  "</"  "think"  ">"  |  "{"  '"a"'  ...
    tag        0     0     2      7       8   |            matched characters of </think>
    grammar    asleep: any token may come     |  awake: its own masks

While it is asleep, only one kind of token is forbidden: a token that completes the tag and has more
text after it, because that text would not be constrained.

A budget of tokens ends the reasoning: when it is spent, the only legal tokens are those of the tag.

Source: vllm/v1/structured_output/__init__.py#L322-L370 (StructuredOutputManager.should_advance)
@ v0.22.1. There, the drafts of the step in which the reasoning ends are not constrained.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.structured_output.backend_types import StructuredOutputGrammar
from mini_vllm.structured_output.token_index import TokenTable, set_bits

ILLEGAL = -1


class EndOfReasoning:
    """Matches the end tag in a sequence of tokens, however they split it. Shared by all requests.

    The state is the number of bytes at the end of the text that are the beginning of the tag.

    Args:
        tag: the end tag in bytes.
        tokens: the vocabulary; the tag may be one of its special tokens.
    """

    def __init__(self, tag: bytes, tokens: TokenTable) -> None:
        self.tag, self.tokens = tag, tokens
        self._rows: dict[int, np.ndarray] = {}
        self._closing: dict[int, int | None] = {}
        self._ending = [i for i, text in enumerate(tokens.texts) if tag[-1:] in text[:-1]]

    @property
    def found(self) -> int:
        """The state after the whole tag."""
        return len(self.tag)

    def walk(self, state: int, token_id: int) -> int:
        """The state after one token; ILLEGAL if it completes the tag and has more text after it."""
        texts = self.tokens.texts
        text = texts[token_id] if 0 <= token_id < len(texts) else b""
        text = self.tag[:state] + (text or self.tokens.special.get(token_id, b""))
        place = text.find(self.tag)
        if place >= 0:
            return self.found if place + len(self.tag) == len(text) else ILLEGAL
        return next(n for n in range(len(self.tag) - 1, -1, -1) if text.endswith(self.tag[:n]))

    def closing(self, state: int) -> int | None:
        """The longest token that goes on with the tag; None if the vocabulary has none."""
        if state not in self._closing:
            rest, texts = self.tag[state:], self.tokens.texts
            spelled = {**{i: text for i, text in enumerate(texts) if text}, **self.tokens.special}
            fitting = [i for i, text in spelled.items() if text and rest.startswith(text)]
            longest = max(fitting, key=lambda i: len(spelled[i]), default=None)
            self._closing[state] = self.closing(0) if longest is None and state else longest
        return self._closing[state]

    def closing_row(self, state: int) -> np.ndarray:
        """:meth:`closing` alone, [W] int32; :meth:`row` where there is none."""
        token_id = self.closing(state)
        if token_id is None:
            return self.row(state)
        row = np.zeros(self.tokens.num_words, dtype=np.int32)
        set_bits(row, [token_id])
        return row

    def row(self, state: int) -> np.ndarray:
        """The tokens that are legal, [W] int32. Shared; do not write to it."""
        if state not in self._rows:
            row = np.full(self.tokens.num_words, -1, dtype=np.int32)
            illegal = [i for i in self._ending if self.walk(state, i) == ILLEGAL]
            set_bits(row, illegal, allowed=False)
            self._rows[state] = row
        return self._rows[state]


class Anything(StructuredOutputGrammar):
    """A grammar of all texts, for requests that have a budget for their reasoning, and no form."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens

    def rollback(self, num_tokens: int) -> None:
        """It has no state."""

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        np.asarray(bitmask)[batch_index] = -1

    def is_terminated(self) -> bool:
        return False

    def must_end(self) -> bool | None:
        return False

    def reset(self) -> None:
        """It has no state."""


class SleepingGrammar(StructuredOutputGrammar):
    """The grammar of one request, which starts after the request's reasoning.

    Args:
        grammar: in its start state.
        end: matches the end tag of the reasoning.
        budget: most tokens before the end tag; None: any number.
    """

    def __init__(
        self, grammar: StructuredOutputGrammar, end: EndOfReasoning, budget: int | None = None
    ) -> None:
        self.grammar, self.end, self.budget = grammar, end, budget
        self.reset()

    @property
    def is_awake(self) -> bool:
        return self._states[-1] == self.end.found

    @property
    def state(self) -> int:
        return self.grammar.state

    def reset(self) -> None:
        self.grammar.reset()
        self._states = [0]  # of `end`: at the start, and after each token until the tag is found
        self._num_awake = 0
        self._settle()

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        states = self._walk(tokens)
        if ILLEGAL in states or not self._accept_awake(request_id, tokens[len(states) :]):
            return False
        self._states += states
        self._settle()
        return True

    def _accept_awake(self, request_id: str, tokens: list[int]) -> bool:
        is_legal = not tokens or self.grammar.accept_tokens(request_id, tokens)
        self._num_awake += len(tokens) if is_legal else 0
        return is_legal

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        states = self._walk(tokens)
        if ILLEGAL in states:
            return tokens[: len(states) - 1]
        rest = tokens[len(states) :]
        return tokens[: len(states)] + (self.grammar.validate_tokens(rest) if rest else [])

    def rollback(self, num_tokens: int) -> None:
        num_asleep = len(self._states) - 1
        if not 0 <= num_tokens <= num_asleep + self._num_awake:
            raise ValueError(
                f"cannot take {num_tokens} tokens back: {num_asleep + self._num_awake} were "
                "accepted"
            )
        num_awake = min(num_tokens, self._num_awake)
        self.grammar.rollback(num_awake)
        self._num_awake -= num_awake
        del self._states[len(self._states) - (num_tokens - num_awake) :]
        self._settle()

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        if self.is_awake:
            self.grammar.fill_bitmask(bitmask, batch_index)
        else:
            row = self.end.closing_row if self._is_spent(0) else self.end.row
            np.asarray(bitmask)[batch_index] = row(self._states[-1])

    def is_terminated(self) -> bool:
        return self.is_awake and self.grammar.is_terminated()

    def must_end(self) -> bool | None:
        return self.grammar.must_end() if self.is_awake else False

    def _is_spent(self, num_more: int) -> bool:
        """Whether the budget is, after so many tokens more."""
        return self.budget is not None and len(self._states) - 1 + num_more >= self.budget

    def _walk(self, tokens: list[int]) -> list[int]:
        """The states of `end` after each token of the reasoning, up to the first ILLEGAL one."""
        states: list[int] = []
        state = self._states[-1]
        for token_id in tokens:
            if state in (self.end.found, ILLEGAL):
                break
            forced = self.end.closing(state) if self._is_spent(len(states)) else None
            state = ILLEGAL if forced not in (None, token_id) else self.end.walk(state, token_id)
            states.append(state)
        return states

    def _settle(self) -> None:
        self.kept_rows = self.grammar.kept_rows if self.is_awake else None


def has_form(grammar: StructuredOutputGrammar) -> bool:
    """Whether it has a say in where the text may end: a budget alone has none."""
    content = grammar.grammar if isinstance(grammar, SleepingGrammar) else grammar
    return not isinstance(content, Anything)
