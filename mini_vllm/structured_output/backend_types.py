"""What a grammar backend must be able to do. The names are vLLM's.

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


LARGE_SPEC = 20_000
"""Characters of a constraint that is large, whatever is in it."""

StructuredOutputKey = tuple[StructuredOutputOptions, str]
"""Two requests with equal keys share one compiled grammar."""


class KeptRows(dict[Hashable, np.ndarray]):
    """Rows of masks that were made once, for all requests that share a grammar.

    Args:
        max_rows: a table with so many begins anew.
    """

    def __init__(self, max_rows: int) -> None:
        super().__init__()
        self.max_rows = max_rows

    def keep(self, key: Hashable, row: np.ndarray) -> None:
        """Keep a copy."""
        if len(self) >= self.max_rows:
            self.clear()
        self[key] = row.copy()


class StructuredOutputGrammar(ABC):
    """How far one request has come in its grammar.

    It has *terminated* once a stop token was accepted. Before, a row of `fill_bitmask` has a bit
    for each token that may come next, and stop tokens only where the text may end; then none.

    Source: vllm/v1/structured_output/backend_types.py#L31-L96 (StructuredOutputGrammar) @ v0.22.1
    """

    kept_rows: KeptRows | None = None
    """By `state` and what a request says about ends; None where no rows are kept."""

    @property
    def state(self) -> int:
        """Where the request stands; equal states have equal rows. Known where rows are kept."""
        raise NotImplementedError

    @abstractmethod
    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance over `tokens`. If one is not legal, advance over none of them and say False."""

    @abstractmethod
    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The longest beginning of `tokens` that could be accepted, without advancing."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Take the last `num_tokens` accepted tokens back."""

    @abstractmethod
    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """Write the row of the tokens that may come next.

        Args:
            bitmask: [rows, ceil(V / 32)] int32 on the CPU, a tensor or an array.
        """

    @abstractmethod
    def is_terminated(self) -> bool:
        """Whether a stop token was accepted."""

    def must_end(self) -> bool | None:
        """Whether nothing but a stop token may come next; None where only the mask can tell."""
        return None

    @abstractmethod
    def reset(self) -> None:
        """Back to the start."""


class StructuredOutputBackend(ABC):
    """Compiles constraints for one model's vocabulary."""

    @abstractmethod
    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str
    ) -> StructuredOutputGrammar:
        """A grammar at its start. May run in any thread; equal constraints compile once.

        Args:
            grammar_spec: a schema or list of choices as JSON, a regular expression, or a grammar.

        Raises:
            ValueError: for what cannot be compiled or is too large; the message says why.
        """

    def compiled(
        self, request_type: StructuredOutputOptions, grammar_spec: str
    ) -> StructuredOutputGrammar | None:
        """What `compile_grammar` would return, if that is known at once; else None."""
        return None

    def is_large(self, request_type: StructuredOutputOptions, grammar_spec: str) -> bool:
        """Whether it may take long to compile, and others should not wait behind it."""
        return len(grammar_spec) > LARGE_SPEC

    @abstractmethod
    def allocate_token_bitmask(self, max_num_seqs: int) -> Any:
        """[max_num_seqs, ceil(V / 32)] int32 on the CPU, all tokens allowed."""

    @abstractmethod
    def destroy(self) -> None:
        """Let go of what is compiled."""
