"""Task 12.6: which tokens each state allows."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.testing import expect
from mini_vllm.structured_output.token_index import TokenIndex, TokenTable, lift_state


def lifted(lab: Any, automaton: Any, state: int) -> dict[str, int]:
    """The tokens that may come next, and where each leads."""
    after = lift_state(automaton, TokenTable(lab.TEXTS), state)
    assert len(after) == len(lab.TEXTS), f"{len(after)} entries for {len(lab.TEXTS)} tokens"
    return {
        text.decode("latin-1"): int(target)
        for text, target in zip(lab.TEXTS, after, strict=True)
        if target != lab.DEAD
    }


def test_12_6_a_token_is_walked_whole(lab: Any) -> None:
    """abc: 'a' and 'ab' may begin it, 'abb' begins well and ends badly."""
    chain = lab.HandMade([{"a": 1}, {"b": 2}, {"c": 3}, {}], {3})
    expect(lifted(lab, chain, 0), {"a": 1, "ab": 2}, at="abc, at its start")
    expect(lifted(lab, chain, 1), {"b": 2}, at="abc, behind a")
    expect(lifted(lab, chain, 3), {}, at="abc, at its end")


def test_12_6_tokens_of_all_lengths(lab: Any) -> None:
    """(a|b)*: every token of these letters, whatever its length."""
    loop = lab.HandMade([{"a": 0, "b": 0}], {0})
    expect(sorted(lifted(lab, loop, 0)), ["a", "ab", "abb", "b", "ba"], at="(a|b)*")


def test_12_6_each_token_has_its_own_state(lab: Any) -> None:
    """States part after the first byte: 'ab' and 'ba' end in different ones."""
    walk = lab.HandMade([{"a": 1, "b": 2}, {"b": 3}, {"a": 4}, {"b": 5}, {}, {}], {4, 5})
    wanted = {"a": 1, "b": 2, "ab": 3, "ba": 4, "abb": 5}
    expect(lifted(lab, walk, 0), wanted, at="abb|ba")


def test_12_6_half_a_character_is_a_token_too(lab: Any) -> None:
    """é is C3 A9: the token C3 alone may begin it."""
    walk = lab.HandMade([{"\xc3": 1}, {"\xa9": 2}, {}], {2})
    expect(lifted(lab, walk, 0), {"\xc3": 1, "\xc3\xa9": 2}, at="é")


def test_12_6_tokens_without_text_never_come(lab: Any) -> None:
    """The end and other special tokens are no text: they are dead in every state."""
    loop = lab.HandMade([{"a": 0}], {0})
    after = lift_state(loop, TokenTable(lab.TEXTS), 0)
    expect([int(after[0]), int(after[9])], [-1, -1], at="tokens 0 and 9, which have no text")


def test_12_6_a_row_is_the_packed_answer(lab: Any) -> None:
    """The index packs which tokens are alive."""
    chain = lab.HandMade([{"a": 1}, {"b": 2}, {}], {2})
    index = TokenIndex(chain, TokenTable(lab.TEXTS))
    expect(lab.allowed(index.row(0)), [1, 3], at="ab, at its start: tokens a and ab")


def test_12_6_a_row_is_made_once(lab: Any) -> None:
    """The second time it comes from memory: no step is walked."""
    chain = lab.HandMade([{"a": 1}, {}], {1})
    index = TokenIndex(chain, TokenTable(lab.TEXTS))
    first = index.row(0).copy()
    chain.step = None  # to walk now fails
    expect(np.array_equal(index.row(0), first), True, at="the same row again")


def test_12_6_the_row_not_used_for_longest_goes(lab: Any) -> None:
    """Room for two rows: 0, 1, then 0 again, then 2; row 1 must have gone."""
    chain = lab.HandMade([{"a": 1}, {"a": 2}, {"a": 3}, {}], {3})
    tokens = TokenTable(lab.TEXTS)
    index = TokenIndex(chain, tokens, max_bytes=2 * 4 * tokens.num_words)
    for state in (0, 1, 0, 2):
        index.row(state)
    expect(sorted(index._rows), [0, 2], at="rows kept after 0, 1, 0, 2 with room for two")


def test_12_6_tokens_of_many_bytes(lab: Any) -> None:
    """Tokenizers have tokens of 16, 64 and more spaces."""
    loop, sizes = lab.HandMade([{"a": 0}], {0}), (1, 15, 16, 17, 64, 128)
    after = lift_state(loop, TokenTable([b"a" * size for size in sizes]), 0)
    expect(after.tolist(), [0] * len(sizes), at=f"tokens of {sizes} letters a, at a*")


def test_12_6_the_tokens_walk_together(lab: Any) -> None:
    """300 tokens of three bytes: three steps for all of them, not one for each token and byte."""
    calls = []

    class Counting(lab.HandMade):  # type: ignore[misc, name-defined]
        def step(self, states: np.ndarray, data: np.ndarray) -> np.ndarray:
            calls.append(len(states))
            return np.where(data == ord("a"), 0, lab.DEAD).astype(np.int32)

        def next(self, state: int, byte: int) -> int:
            calls.append(1)
            return super().next(state, byte)  # type: ignore[no-any-return]

    loop = Counting([{"a": 0}], {0})
    lift_state(loop, TokenTable([b"aaa"] * 100 + [b"aab"] * 100 + [b"baa"] * 100), 0)
    expect(len(calls) <= 6, True, at=f"300 tokens of three bytes: {len(calls)} steps, at most 6")
    expect(calls[1] <= 200, True, at=f"column 1: {calls[1]} tokens; 100 were dead before")


def test_12_6_the_byte_0_is_a_byte(lab: Any) -> None:
    """Rows of the matrix are padded with 0, and a token may hold that byte: its length decides."""
    walk = lab.HandMade([{"a": 1}, {"\0": 2}, {"b": 3}, {}], {3})
    texts = [b"a", b"a\0", b"a\0b", b"ab"]
    after = lift_state(walk, TokenTable(texts), 0)
    expect(after.tolist(), [1, 2, 3, lab.DEAD], at=f"tokens {texts}, at a, 0, b")
