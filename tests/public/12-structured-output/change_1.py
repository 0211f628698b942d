"""Change request 1: the bytes that must come anyway."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.testing import expect
from mini_vllm.structured_output.native import NativeGrammar

# (cat|cart)s? over the letters a, c, r, s, t
WORDS = [{"c": 1}, {"a": 2}, {"r": 3, "t": 4}, {"t": 4}, {"s": 5}, {}]
LETTERS = [b"", b"a", b"c", b"r", b"s", b"t"]


def grammar_of(lab: Any) -> NativeGrammar:
    walk = lab.HandMade(WORDS, {4, 5})
    return NativeGrammar(lab.HandIndex(walk, LETTERS), [0])


def forced(grammar: NativeGrammar) -> str:
    return grammar.forced_bytes().decode()  # type: ignore[attr-defined, no-any-return]


def test_change_1_up_to_the_first_choice(lab: Any) -> None:
    """(cat|cart)s? begins with ca in any case."""
    expect(forced(grammar_of(lab)), "ca", at="(cat|cart)s?, at its start")


def test_change_1_in_the_middle(lab: Any) -> None:
    """Behind ca nothing, behind car a t, behind cat it may end."""
    for text, wanted in (("ca", ""), ("car", "t"), ("cat", ""), ("cats", "")):
        grammar = grammar_of(lab)
        grammar.accept_tokens("r", [LETTERS.index(char.encode()) for char in text])
        expect(forced(grammar), wanted, at=f"(cat|cart)s?, behind {text}")


def test_change_1_nothing_moves(lab: Any) -> None:
    """Asked twice, the answer is the same, and so is the mask."""
    grammar = grammar_of(lab)
    answers = [forced(grammar), forced(grammar)]
    expect(answers, ["ca", "ca"], at="asked twice")
    words = np.zeros((1, 1), dtype=np.int32)
    grammar.fill_bitmask(words, 0)
    expect(lab.allowed(words, len(LETTERS)), [2], at="the mask: c")
