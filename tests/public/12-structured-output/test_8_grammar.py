"""Task 12.8: the grammar's state for one request."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from labkit.testing import expect
from mini_vllm.structured_output.native import NativeGrammar

A, B, AB, BA, ABB, C = 1, 2, 3, 4, 5, 6


@pytest.fixture
def grammar(lab: Any) -> NativeGrammar:
    """(ab)+c?, with tokens 0 and 9 that end it."""
    walk = lab.HandMade([{"a": 1}, {"b": 2}, {"a": 1, "c": 3}, {}], {2, 3})
    return NativeGrammar(lab.HandIndex(walk), [lab.END, lab.OTHER_END])


def mask(lab: Any, grammar: NativeGrammar) -> list[int]:
    words = np.full((2, 1), -1, dtype=np.int32)
    grammar.fill_bitmask(words, 1)
    expect(int(words[0, 0]), -1, at="the row of another request")
    return lab.allowed(words[1])


def test_12_8_a_mask_at_the_start(lab: Any, grammar: NativeGrammar) -> None:
    """(ab)+c?: a and ab; not the end, for nothing is there yet."""
    expect(mask(lab, grammar), [A, AB], at="(ab)+c?, at its start")


def test_12_8_the_end_where_the_text_may_end(lab: Any, grammar: NativeGrammar) -> None:
    """Behind ab: more, c, or either of the two tokens that end."""
    grammar.accept_tokens("r", [AB])
    expect(mask(lab, grammar), [lab.END, A, AB, C, lab.OTHER_END], at="behind ab")


def test_12_8_accepting_advances(lab: Any, grammar: NativeGrammar) -> None:
    """a, then b, in two steps or in one."""
    expect(grammar.accept_tokens("r", [A, B, C]), True, at="a, b, c")
    expect(mask(lab, grammar), [lab.END, lab.OTHER_END], at="behind abc: only the end")
    expect(grammar.num_processed_tokens, 3, at="tokens accepted")


def test_12_8_all_or_nothing(lab: Any, grammar: NativeGrammar) -> None:
    """[ab, b]: the first is legal, the second is not; neither is taken."""
    expect(grammar.accept_tokens("r", [AB, B]), False, at="ab, then b")
    expect(mask(lab, grammar), [A, AB], at="the mask afterwards: still the start")
    expect(grammar.num_processed_tokens, 0, at="tokens accepted")


def test_12_8_the_end_only_where_it_may_be(grammar: NativeGrammar) -> None:
    """At the start no end is accepted; behind ab it is, and nothing follows it."""
    expect(grammar.accept_tokens("r", [0]), False, at="the end, at the start")
    expect(grammar.accept_tokens("r", [AB, 0]), True, at="ab and the end")
    expect(grammar.is_terminated(), True, at="terminated")
    expect(grammar.accept_tokens("r", [A]), False, at="a behind the end")
    expect(grammar.accept_tokens("r", [0]), False, at="the end behind the end")


def test_12_8_behind_the_end_no_token(lab: Any, grammar: NativeGrammar) -> None:
    """A row of zeros, not of ones: nothing may follow."""
    grammar.accept_tokens("r", [AB, 0])
    expect(mask(lab, grammar), [], at="behind the end")


def test_12_8_the_end_in_the_middle_of_a_batch(grammar: NativeGrammar) -> None:
    """[ab, end, a]: nothing may stand behind an end, so nothing of it is taken."""
    expect(grammar.accept_tokens("r", [AB, 0, A]), False, at="ab, end, a")
    expect(grammar.is_terminated(), False, at="terminated")


def test_12_8_looking_ahead_moves_nothing(lab: Any, grammar: NativeGrammar) -> None:
    """The longest legal beginning, and the grammar stands where it stood."""
    expect(grammar.validate_tokens([A, B, A, C, B]), [A, B, A], at="a, b, a, c, b")
    expect(grammar.validate_tokens([AB, 0, A]), [AB, 0], at="ab, end, a")
    expect(grammar.validate_tokens([C]), [], at="c")
    expect(mask(lab, grammar), [A, AB], at="the mask afterwards")


def test_12_8_taking_back(lab: Any, grammar: NativeGrammar) -> None:
    """Every mask comes back, in one go or one by one."""
    grammar.accept_tokens("r", [A, B, A, B])
    grammar.rollback(3)
    expect(mask(lab, grammar), [B, BA], at="a, b, a, b less three")
    grammar.rollback(1)
    expect(mask(lab, grammar), [A, AB], at="less all")
    grammar.rollback(0)
    expect(mask(lab, grammar), [A, AB], at="less none")


def test_12_8_the_end_is_taken_back_too(lab: Any, grammar: NativeGrammar) -> None:
    """Then the text is as open as before."""
    grammar.accept_tokens("r", [AB, 0])
    grammar.rollback(1)
    expect(grammar.is_terminated(), False, at="terminated, after the end was taken back")
    expect(grammar.accept_tokens("r", [C]), True, at="c instead of the end")


def test_12_8_more_than_there_is_cannot_be_taken_back(grammar: NativeGrammar) -> None:
    """An error that says how many were to be taken back, and how many there are."""
    grammar.accept_tokens("r", [A])
    with pytest.raises(ValueError) as error:
        grammar.rollback(2)
    numbers = sorted(re.findall(r"\d+", str(error.value)))
    expect(numbers, ["1", "2"], at="the numbers in the message", message=str(error.value))


def test_12_8_unknown_tokens_are_refused(grammar: NativeGrammar) -> None:
    """Ids that are no text, or are not in the vocabulary."""
    for token in (99, -1):
        expect(grammar.accept_tokens("r", [token]), False, at=f"token {token}")


def test_12_8_a_corner_is_an_error(lab: Any) -> None:
    """The text cannot end and no token can go on: an empty mask would be drawn from."""
    corner = NativeGrammar(lab.HandIndex(lab.HandMade([{"z": 1}, {}], {1})), [0])
    with pytest.raises(ValueError, match="no token"):
        corner.fill_bitmask(np.zeros((1, 1), dtype=np.int32), 0)


def test_12_8_no_tokens_are_always_accepted(grammar: NativeGrammar) -> None:
    """An empty list: at the start, behind tokens, and behind the end. It changes nothing."""
    for tokens, ended in (([], False), ([AB], False), ([0], True)):
        grammar.accept_tokens("r", tokens)
        expect(grammar.accept_tokens("r", []), True, at=f"no tokens behind {tokens}")
        expect(grammar.is_terminated(), ended, at=f"terminated behind {tokens} and no tokens")


def test_12_8_an_end_without_a_bit(lab: Any) -> None:
    """The row has 32 bits, the last one for token 31; behind it the model cannot write an end."""
    walk = lab.HandMade([{"a": 0}], {0})
    grammar = NativeGrammar(lab.HandIndex(walk), [lab.END, 31, 32, 70_000])
    expect(mask(lab, grammar), [lab.END, A, 31], at="a*, with the ends 0, 31, 32 and 70,000")
