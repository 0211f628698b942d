"""The interface of a grammar backend. The names are vLLM's.

Source: vllm/v1/structured_output/backend_types.py#L99-L136 (StructuredOutputBackend) @ v0.22.1
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any

import numpy as np


class StructuredOutputOptions(enum.Enum):
    """The kinds of constraint."""

    JSON = "json"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"
    COMPACT_JSON = "json without white space"
    ANYTHING = "all texts"
    """Of a request with ``thinking_token_budget`` alone."""


LARGE_SPEC = 20_000
"""A constraint with more characters than this counts as large."""

StructuredOutputKey = tuple[StructuredOutputOptions, str]
"""Two requests with equal keys share one compiled grammar."""


class KeptRows(dict[Hashable, np.ndarray]):
    """Finished mask rows, shared by all requests that have the same grammar.

    Args:
        max_rows: the table is cleared when it holds this many rows.
    """

    def __init__(self, max_rows: int) -> None:
        super().__init__()
        self.max_rows = max_rows

    def keep(self, key: Hashable, row: np.ndarray) -> None:
        """Store a copy of `row`."""
        if len(self) >= self.max_rows:
            self.clear()
        self[key] = row.copy()


class StructuredOutputGrammar(ABC):
    """The state of one request in its grammar.

    It has *terminated* once a stop token was accepted. Before that, a row of `fill_bitmask` has a
    bit for each token that may come next; a stop token has one only where the text may end. After
    that, the row has no bits.

    Source: vllm/v1/structured_output/backend_types.py#L31-L96 (StructuredOutputGrammar) @ v0.22.1
    """

    kept_rows: KeptRows | None = None
    """Rows by `state` and the request's settings for ends; None if the backend keeps no rows."""

    @property
    def state(self) -> int:
        """The current state; equal states have equal rows. Needed only where rows are kept."""
        raise NotImplementedError

    @abstractmethod
    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance over `tokens`. If one is not legal, advance over none and return False."""

    @abstractmethod
    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The longest prefix of `tokens` that could be accepted, without advancing."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` accepted tokens."""

    @abstractmethod
    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """Write the mask row of the tokens that may come next.

        Args:
            bitmask: [rows, ceil(V / 32)] int32 on the CPU, a tensor or an array.
        """

    @abstractmethod
    def is_terminated(self) -> bool:
        """Whether a stop token was accepted."""

    def must_end(self) -> bool | None:
        """Whether only a stop token may come next; None if this is known from the mask alone."""
        return None

    @abstractmethod
    def reset(self) -> None:
        """Go back to the start of the grammar."""


class StructuredOutputBackend(ABC):
    """Compiles constraints for one model's vocabulary."""

    @abstractmethod
    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str
    ) -> StructuredOutputGrammar:
        """A grammar in its start state. May run in any thread; equal constraints compile once.

        Args:
            grammar_spec: a schema or list of choices as JSON, a regular expression, or a grammar.

        Raises:
            ValueError: for what cannot be compiled or is too large; the message says why.
        """

    def compiled(
        self, request_type: StructuredOutputOptions, grammar_spec: str
    ) -> StructuredOutputGrammar | None:
        """What `compile_grammar` would return, if it is in the cache; else None."""
        return None

    def is_large(self, request_type: StructuredOutputOptions, grammar_spec: str) -> bool:
        """Whether compiling may take so long that small grammars should not wait for it."""
        return len(grammar_spec) > LARGE_SPEC

    @abstractmethod
    def allocate_token_bitmask(self, max_num_seqs: int) -> Any:
        """[max_num_seqs, ceil(V / 32)] int32 on the CPU, all tokens allowed."""

    @abstractmethod
    def destroy(self) -> None:
        """Free the compiled grammars."""
