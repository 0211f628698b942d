"""The backend `native`, built from the automata of this package.

constraint -> rules -> Machine -> Pushdown -> TokenIndex      shared by all requests with it
NativeGrammar                                                 the state of one request
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from mini_vllm.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputKey,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.ebnf import parse_grammar
from mini_vllm.structured_output.json_schema import any_json, compile_schema
from mini_vllm.structured_output.lark import as_ebnf
from mini_vllm.structured_output.patterns import Pattern, Rules, one_of, parse_regex
from mini_vllm.structured_output.pushdown import MAX_CONFIGURATIONS, Pushdown, compile_rules
from mini_vllm.structured_output.regex_automaton import DEAD, TooLarge, check_size
from mini_vllm.structured_output.structural_tag import compile_structural_tag
from mini_vllm.structured_output.token_index import TokenIndex, TokenTable, set_bits

MAX_CACHE_BYTES = 256 * 2**20
"""Most memory of the cache of compiled grammars."""
LARGE_STATES = 8_000
"""A grammar with more states than this counts as large: compiling it takes a second or more."""
MAX_CHOICE_LENGTH = 100_000
"""Most characters of all choices of one request."""


class NativeGrammar(StructuredOutputGrammar):
    """The state of one request in its grammar, with the history of earlier states.

    Args:
        index: shared by all requests with this grammar.
        stop_token_ids: tokens that end the text and are not text themselves.
    """

    def __init__(self, index: TokenIndex, stop_token_ids: Sequence[int]) -> None:
        self.index = index
        self.stop_token_ids = frozenset(stop_token_ids)
        self.reset()

    @property
    def state(self) -> int:
        return self._history[-1]

    @property
    def num_processed_tokens(self) -> int:
        """How many tokens were accepted and not rolled back, the stop token included."""
        return len(self._history) - 1

    def reset(self) -> None:
        self._history = [self.index.automaton.start]
        self._terminated = False

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance over all of `tokens`, or over none of them.

        The history has one more state for every token, so that `rollback` only has to cut it. A
        stop token is legal where the text may end; it leads to no other state, and nothing may
        follow it. No tokens at all are accepted everywhere, after the end as well.
        """
        # TODO 12.8
        raise NotImplementedError(
            "TODO 12.8: write NativeGrammar.accept_tokens in labs/12-structured-output/native.py"
            " (phase 12, 02-mini-build.md#task-8)"
        )

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The longest beginning of `tokens` that `accept_tokens` would take. Changes nothing."""
        return tokens[: len(self._walk(tokens))]

    def rollback(self, num_tokens: int) -> None:
        """Forget the last `num_tokens` accepted tokens; a stop token among them is undone too.

        Raises:
            ValueError: for more tokens than were accepted, with both numbers.
        """
        # TODO 12.8
        raise NotImplementedError(
            "TODO 12.8: write NativeGrammar.rollback in labs/12-structured-output/native.py"
            " (phase 12, 02-mini-build.md#task-8)"
        )

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """Write the packed row of this state: its tokens, and the stop tokens where the text may
        end. After the end no token may follow. A stop token beyond the row, which the model
        cannot sample, has no bit and is passed over.

        Args:
            bitmask: [rows, ceil(V / 32)] int32 on the CPU, an array or a tensor
                (`allocate_token_bitmask`); row `batch_index` is written in place, no other.

        Raises:
            ValueError: if the text cannot end, and no token of the vocabulary can go on; it says
                "no token", for the request ends with these words.
        """
        # TODO 12.8
        raise NotImplementedError(
            "TODO 12.8: write NativeGrammar.fill_bitmask in labs/12-structured-output/native.py"
            " (phase 12, 02-mini-build.md#task-8)"
        )

    def is_terminated(self) -> bool:
        return self._terminated

    def must_end(self) -> bool:
        return self.index.must_end(self.state)

    def _walk(self, tokens: Sequence[int]) -> list[int]:
        """The states after each of `tokens`, up to the first token that is not legal."""
        # TODO 12.8
        raise NotImplementedError(
            "TODO 12.8: write NativeGrammar._walk in labs/12-structured-output/native.py"
            " (phase 12, 02-mini-build.md#task-8)"
        )


class NativeBackend(StructuredOutputBackend):
    """Compiles with this package.

    Args:
        tokens: the vocabulary.
        stop_token_ids: all tokens that end an output of the model.
        any_whitespace, close_objects: see `json_schema.compile_schema`.
    """

    def __init__(
        self,
        tokens: TokenTable,
        stop_token_ids: Sequence[int],
        any_whitespace: bool = True,
        close_objects: bool = True,
    ) -> None:
        self.tokens = tokens
        self.stop_token_ids = stop_token_ids
        self.any_whitespace = any_whitespace
        self.close_objects = close_objects
        self._indexes: OrderedDict[StructuredOutputKey, TokenIndex] = OrderedDict()
        self._lock = threading.Lock()

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str
    ) -> NativeGrammar:
        grammar = self.compiled(request_type, grammar_spec)
        if grammar is not None:
            return grammar
        rules = read_constraint(request_type, grammar_spec, self.any_whitespace, self.close_objects)
        try:
            machine = compile_rules(rules, can_write=self.tokens.can_write)
        except ValueError as error:
            raise type(error)(f"{request_type.value} {error}") from None
        index = TokenIndex(Pushdown(machine), self.tokens)
        with self._lock:
            self._indexes[request_type, grammar_spec] = index
            self._shrink()
        return self._grammar_of(index)

    def compiled(
        self, request_type: StructuredOutputOptions, grammar_spec: str
    ) -> NativeGrammar | None:
        key = (request_type, grammar_spec)
        with self._lock:
            index = self._indexes.get(key)
            # A table that is half full is left to the requests that use it, and a new one is made.
            if index is None or len(index.automaton) > MAX_CONFIGURATIONS // 2:
                return None
            self._indexes.move_to_end(key)
        return self._grammar_of(index)

    def _grammar_of(self, index: TokenIndex) -> NativeGrammar:
        grammar = NativeGrammar(index, self.stop_token_ids)
        grammar.kept_rows = index.finished
        return grammar

    def is_large(self, request_type: StructuredOutputOptions, grammar_spec: str) -> bool:
        """Judged by the length of the text, then by the number of states before minimisation."""
        if (request_type, grammar_spec) in self._indexes:
            return False
        if super().is_large(request_type, grammar_spec):
            return True
        rules = read_constraint(request_type, grammar_spec, self.any_whitespace, self.close_objects)
        try:
            return sum(check_size(pattern) for pattern in rules.values()) > LARGE_STATES
        except TooLarge:  # compiling it fails at once
            return False

    def _shrink(self) -> None:
        """Drop the least recently used grammars until the rest fits; the newest one stays."""
        total = sum(index.nbytes for index in self._indexes.values())
        while total > MAX_CACHE_BYTES and len(self._indexes) > 1:
            total -= self._indexes.popitem(last=False)[1].nbytes

    def allocate_token_bitmask(self, max_num_seqs: int) -> Any:
        import torch

        return torch.full((max_num_seqs, self.tokens.num_words), -1, dtype=torch.int32)

    def destroy(self) -> None:
        self._indexes.clear()


def read_constraint(
    kind: StructuredOutputOptions,
    spec: str,
    any_whitespace: bool = True,
    close_objects: bool = True,
) -> Rules:
    """The rules of a constraint, not yet compiled into automata.

    Raises:
        ValueError: for a constraint that cannot be read or cannot be enforced.
    """
    if kind is StructuredOutputOptions.JSON:
        return compile_schema(spec, any_whitespace, close_objects)
    if kind is StructuredOutputOptions.COMPACT_JSON:
        return compile_schema(spec, any_whitespace=False, close_objects=close_objects)
    if kind is StructuredOutputOptions.JSON_OBJECT:
        return any_json(any_whitespace)
    if kind is StructuredOutputOptions.REGEX:
        return {"root": parse_regex(spec)}
    if kind is StructuredOutputOptions.CHOICE:
        return {"root": _one_of_choices(json.loads(spec))}
    if kind is StructuredOutputOptions.STRUCTURAL_TAG:
        return compile_structural_tag(spec, any_whitespace, close_objects)
    return parse_grammar(as_ebnf(spec))


def _one_of_choices(choices: list[str]) -> Pattern:
    length = sum(map(len, choices))
    if length > MAX_CHOICE_LENGTH:
        raise ValueError(
            f"choice has {len(choices):,} texts of {length:,} characters together; at most "
            f"{MAX_CHOICE_LENGTH:,} are compiled; offer fewer, or write a regex"
        )
    return one_of(choices)
