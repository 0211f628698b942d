"""Change request 1, over random languages: every text goes on so, and no longer stretch is sure."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.structured_output.backend_types import StructuredOutputOptions as Kind
from mini_vllm.structured_output.native import NativeBackend, NativeGrammar
from mini_vllm.structured_output.token_index import TokenTable

LETTERS = [b"a", b"b", b"c", b""]
END = 3


def grammar_of(texts: list[str]) -> NativeGrammar:
    backend = NativeBackend(TokenTable(LETTERS), [END])
    return backend.compile_grammar(Kind.REGEX, "|".join(texts))


def wanted(texts: list[str], begun: str) -> str:
    left = [text[len(begun) :] for text in texts if text.startswith(begun)]
    size = 0
    while all(len(text) > size and text[: size + 1] == left[0][: size + 1] for text in left):
        size += 1
    return left[0][:size]


@pytest.mark.parametrize("seed", range(60))
def test_change_1_at_every_place(seed: int) -> None:
    rng = Random(seed)
    stem = "".join(rng.choices("abc", k=rng.randint(0, 4)))
    texts = sorted(
        {stem + "".join(rng.choices("abc", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 4))}
    )
    text = rng.choice(texts)
    grammar = grammar_of(texts)
    for place in range(len(text) + 1):
        found = grammar.forced_bytes()  # type: ignore[attr-defined]
        assert found.decode() == wanted(texts, text[:place]), (texts, text[:place])
        assert grammar.num_processed_tokens == place
        if place < len(text):
            assert grammar.accept_tokens("", [ord(text[place]) - 97])
    assert grammar.accept_tokens("", [END])
    assert grammar.forced_bytes() == b""  # type: ignore[attr-defined]
    grammar.rollback(len(text) + 1)
    assert grammar.forced_bytes().decode() == wanted(texts, "")  # type: ignore[attr-defined]


def test_change_1_brackets_and_loops() -> None:
    """Recursion decides nothing; a loop may end or go on."""
    backend = NativeBackend(TokenTable([b"[", b"]", b"a", b""]), [END])
    grammar = backend.compile_grammar(Kind.GRAMMAR, 'root ::= "[" ( root | "aa" ) "]"')
    assert grammar.forced_bytes() == b"["  # type: ignore[attr-defined]
    grammar.accept_tokens("", [0, 0, 2])
    assert grammar.forced_bytes() == b"a]]"  # type: ignore[attr-defined]
    loop = backend.compile_grammar(Kind.REGEX, "(aa)+")
    assert loop.forced_bytes() == b"aa"  # type: ignore[attr-defined]
    loop.accept_tokens("", [2, 2])
    assert loop.forced_bytes() == b""  # type: ignore[attr-defined]
