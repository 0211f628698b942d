"""Task 12.7: pack the mask: 32 tokens in an int32."""

from __future__ import annotations

import numpy as np

from labkit.testing import expect
from mini_vllm.structured_output.token_index import pack_bits, set_bits


def packed(*tokens: int, size: int) -> list[int]:
    allowed = np.zeros(size, dtype=bool)
    allowed[list(tokens)] = True
    return pack_bits(allowed).tolist()


def test_12_7_token_0_is_the_lowest_bit() -> None:
    """Tokens 0, 1 and 3 of 32: 1 + 2 + 8."""
    expect(packed(0, 1, 3, size=32), [11], at="tokens 0, 1, 3 of 32")


def test_12_7_token_31_is_the_sign() -> None:
    """Bit 31 of an int32 is its sign: 2**31 does not fit, -2**31 does."""
    expect(packed(31, size=32), [-(2**31)], at="token 31 of 32")
    expect(packed(*range(32), size=32), [-1], at="all of 32")


def test_12_7_token_32_begins_the_next_word() -> None:
    """Token t is bit t % 32 of word t // 32."""
    expect(packed(32, 65, size=70), [0, 1, 2], at="tokens 32 and 65 of 70")


def test_12_7_the_last_word_may_be_half_empty() -> None:
    """Bits behind the vocabulary are 0."""
    expect(packed(*range(33), size=33), [-1, 1], at="all of 33")
    expect(packed(0, size=1), [1], at="the only token")


def test_12_7_words_are_int32() -> None:
    """Four bytes a word, whatever numpy would like."""
    expect(str(pack_bits(np.ones(40, dtype=bool)).dtype), "int32", at="the dtype of the words")


def test_12_7_single_bits_are_set_in_place() -> None:
    """Others keep what they are, the sign included, and so does one that is set already."""
    words = np.array([2, 0], dtype=np.int32)
    set_bits(words, [0, 1, 31, 33])
    expect(words.tolist(), [3 - 2**31, 2], at="2, 0 with tokens 0, 1, 31, 33 allowed")


def test_12_7_and_cleared() -> None:
    """A bit that was 0 stays 0."""
    words = np.array([-1, 5], dtype=np.int32)
    set_bits(words, [31, 33, 34], allowed=False)
    expect(words.tolist(), [2**31 - 1, 1], at="all ones and 5, with 31, 33, 34 forbidden")
