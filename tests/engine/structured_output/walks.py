"""Ways through a grammar: random texts of it, and random cuts of a text into tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from mini_vllm.structured_output.backend_types import StructuredOutputGrammar
from mini_vllm.structured_output.patterns import Rules
from mini_vllm.structured_output.pushdown import Pushdown, compile_rules
from mini_vllm.structured_output.regex_automaton import DEAD
from mini_vllm.structured_output.token_index import TokenTable, unpack_bits

CLOSERS = b'"]},'


def automaton(rules: Rules) -> Pushdown:
    return Pushdown(compile_rules(rules))


def accepts(automaton: Pushdown, text: str | bytes) -> bool:
    state = automaton.start
    for byte in text.encode() if isinstance(text, str) else text:
        state = automaton.next(state, byte)
        if state == DEAD:
            return False
    return automaton.is_accepting(state)


def random_text(automaton: Pushdown, rng: random.Random, longest: int = 300) -> bytes | None:
    """A text of the grammar, byte by byte; None if it has not ended after `longest`."""
    state, text = automaton.start, bytearray()
    for _ in range(longest):
        if automaton.is_accepting(state) and rng.random() < 0.5:
            return bytes(text)
        legal = [byte for byte in range(256) if automaton.next(state, byte) != DEAD]
        if not legal:
            return bytes(text) if automaton.is_accepting(state) else None
        ending = [byte for byte in legal if byte in CLOSERS] if len(text) > 20 else []
        text.append(rng.choice(ending if ending and rng.random() < 0.7 else legal))
        state = automaton.next(state, text[-1])
    return None


def cut(text: bytes, tokens: TokenTable, rng: random.Random, how: str) -> list[int]:
    """A way to write `text` in tokens: "longest" ones, "bytes", or a "random" one at each place."""
    ids: dict[bytes, int] = {token: index for index, token in enumerate(tokens.texts) if token}
    longest = max(map(len, ids))
    result, at = [], 0
    while at < len(text):
        fits = [
            n for n in range(1, longest + 1) if text[at : at + n] in ids and at + n <= len(text)
        ]
        size = {"longest": fits[-1], "bytes": fits[0], "random": rng.choice(fits)}[how]
        result.append(ids[text[at : at + size]])
        at += size
    return result


def row_of(grammar: StructuredOutputGrammar, vocab_size: int) -> np.ndarray:
    """[V] bool: what `fill_bitmask` allows now."""
    words = np.zeros((1, -(-vocab_size // 32)), dtype=np.int32)
    grammar.fill_bitmask(words, 0)
    return unpack_bits(words[0], vocab_size)


def blocked(grammar: StructuredOutputGrammar, path: Sequence[int], vocab_size: int) -> list[int]:
    """Walk a path of tokens; the places where the mask forbids the path's own token."""
    wrong = []
    for place, token in enumerate(path):
        if not row_of(grammar, vocab_size)[token]:
            wrong.append(place)
        if not grammar.accept_tokens("", [token]):
            wrong.append(place)
            break
    return wrong
