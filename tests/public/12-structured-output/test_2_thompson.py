"""Task 12.2: from a pattern to an NFA."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

from labkit.testing import expect
from mini_vllm.structured_output.patterns import Anchor, Call, Concat, Union, parse_regex
from mini_vllm.structured_output.regex_automaton import Nfa

WORDS = ["".join(word) for size in range(6) for word in product("ab", repeat=size)]


def words_of(lab: Any, pattern: str) -> list[str]:
    nfa = Nfa()
    start, end = nfa.add(parse_regex(pattern))
    return [word for word in WORDS if lab.run_nfa(nfa, start, end, word.encode())]


def agree(lab: Any, *patterns: str) -> None:
    for pattern in patterns:
        wanted = [word for word in WORDS if re.fullmatch(pattern, word)]
        expect(words_of(lab, pattern), wanted, at=f"{pattern!r}: words of a and b up to 5 letters")


def test_12_2_one_after_the_other(lab: Any) -> None:
    """ab is a and then b; nothing at all is the empty word."""
    agree(lab, "ab", "aab", "")


def test_12_2_one_of_several(lab: Any) -> None:
    """a|bb is either; a| is a or nothing."""
    agree(lab, "a|bb", "a|", "(a|b)(a|bb)")


def test_12_2_any_number(lab: Any) -> None:
    """Star has the empty word too, and goes round again."""
    agree(lab, "a*", "(ab)*", "a*b*", "(a|b)*")


def test_12_2_counted_repeats(lab: Any) -> None:
    """? is one or none, {2} exactly two, {2,3} two or three, {2,} two or more, {0} none."""
    agree(lab, "a?", "a{2}", "a{2,3}", "a{2,}", "a{0}", "a{0,2}b", "(ab){1,2}", "a?b+")


def test_12_2_a_star_of_something_empty_ends(lab: Any) -> None:
    """(a*)* loops over nothing, and must neither hang nor lose words."""
    agree(lab, "(a*)*b", "(a?b?)*", "(|a)+b")


def test_12_2_copies_are_machines_of_their_own(lab: Any) -> None:
    """(a|b){2}a: if both copies were one machine, its loops would mix."""
    agree(lab, "(a|b){2}a", "(ab?){2}", "(a*b){2}", "(a+b){2,3}")


def test_12_2_characters_become_bytes(lab: Any) -> None:
    """é is two bytes; its first alone is no text."""
    nfa = Nfa()
    start, end = nfa.add(parse_regex("[aé]"))
    found = [data for data in (b"a", "é".encode(), b"\xc3", b"\xa9", b"\xc3\xa9a")
             if lab.run_nfa(nfa, start, end, data)]  # fmt: skip
    expect(found, [b"a", b"\xc3\xa9"], at="[aé] over bytes")


def test_12_2_anchors_are_moves_with_a_condition(lab: Any) -> None:
    """^ lets through at the start only, $ at the end only."""
    for at_end, condition in ((False, "start"), (True, "end")):
        nfa = Nfa()
        start, _ = nfa.add(Anchor(at_end))
        at = f"the condition of the free move of Anchor(at_end={at_end})"
        expect([c for _, c in nfa.free[start]], [condition], at=at)
    agree(lab, "^ab$", "^a|b", "(^a|b)b*")


def test_12_2_a_call_is_a_move_by_its_name() -> None:
    """The rule's name stands where a byte range would."""
    nfa = Nfa()
    start, end = nfa.add(Call("value"))
    expect(nfa.moves[start], [("value", end)], at="Call('value')")


def test_12_2_nothing_leads_into_start_or_out_of_end() -> None:
    """So machines can be joined without harm."""
    for pattern in ("a*", "(a|b)+", "a{2,3}", "ab", ""):
        nfa = Nfa()
        start, end = nfa.add(parse_regex(pattern))
        into = [t for moves in [*nfa.free] for t, _ in moves] + [t for m in nfa.moves for _, t in m]
        expect(start in into, False, at=f"{pattern!r}: a move leads back into start")
        expect(nfa.free[end] + nfa.moves[end], [], at=f"{pattern!r}: moves out of end")


def test_12_2_the_pattern_without_texts(lab: Any) -> None:
    """Of no choices none can be taken; of no parts all are."""
    nfa = Nfa()
    start, end = nfa.add(Union(()))
    expect(lab.run_nfa(nfa, start, end, b""), False, at="Union of nothing, over the empty text")
    start, end = nfa.add(Concat(()))
    expect(lab.run_nfa(nfa, start, end, b""), True, at="Concat of nothing, over the empty text")
