"""Task 12.9: numbers with limits, and objects with optional keys."""

from __future__ import annotations

import re
from typing import Any

from labkit.testing import expect
from mini_vllm.structured_output.json_text import digits_between, object_pattern
from mini_vllm.structured_output.patterns import (
    Chars,
    Concat,
    Pattern,
    Repeat,
    Union,
    concat,
)


def as_regex(pattern: Pattern) -> str:
    """A pattern in Python's own notation."""
    match pattern:
        case Chars(ranges):
            body = "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in ranges if a <= b)
            return f"[{body}]" if body else "(?!)"
        case Concat(parts):
            return "".join(map(as_regex, parts))
        case Union(choices):
            return f"(?:{'|'.join(map(as_regex, choices))})" if choices else "(?!)"
        case Repeat(part, low, high):
            return f"(?:{as_regex(part)}){{{low},{'' if high is None else high}}}"
    raise AssertionError(f"unexpected {pattern}")


def numbers(low: str, high: str) -> list[str]:
    """All digit strings of this length, of one digit less or of one more that the pattern
    matches."""
    regex = re.compile(as_regex(digits_between(low, high)))
    sizes = range(len(low) - 1, len(low) + 2)
    texts = (str(n).zfill(size) if size else "" for size in sizes for n in range(10**size))
    return [text for text in texts if regex.fullmatch(text)]


def test_12_9_one_digit() -> None:
    """3 to 6."""
    expect(numbers("3", "6"), ["3", "4", "5", "6"], at="3 to 6")
    expect(numbers("5", "5"), ["5"], at="5 to 5")


def test_12_9_first_digits_differ() -> None:
    """28 to 41: the digits behind 2 and behind 4 have limits, those behind 3 have none."""
    expect(numbers("28", "41"), [str(n) for n in range(28, 42)], at="28 to 41")


def test_12_9_first_digits_are_equal() -> None:
    """283 to 287."""
    expect(numbers("283", "287"), [str(n) for n in range(283, 288)], at="283 to 287")


def test_12_9_neighbours() -> None:
    """19 to 20: between 1 and 2 there is no digit."""
    expect(numbers("19", "20"), ["19", "20"], at="19 to 20")


def test_12_9_every_pair_of_two_digits() -> None:
    """Also with leading zeros, as they stand behind a first digit."""
    for low in range(0, 100, 7):
        for high in range(low, 100, 9):
            wanted = [f"{n:02}" for n in range(low, high + 1)]
            expect(numbers(f"{low:02}", f"{high:02}"), wanted, at=f"{low:02} to {high:02}")


def test_12_9_the_empty_string_has_one_text() -> None:
    """Behind the last digit nothing is left."""
    regex = re.compile(as_regex(digits_between("", "")))
    expect([text for text in ("", "0", "00") if regex.fullmatch(text)], [""], at="no digits")


def objects(needed: str, others: bool = False) -> list[str]:
    """What of a, b, c (and x) the pattern matches; `needed` has the letters that must be there."""
    members: list[Pattern] = [concat(letter) for letter in "abc"]
    pattern = object_pattern(
        members,
        [letter in needed for letter in "abc"],
        concat("x") if others else None,
        concat(","),
    )
    regex = re.compile(as_regex(pattern))
    words = [
        "a",
        "b",
        "c",
        "a,b",
        "a,c",
        "b,c",
        "a,b,c",
        "b,a",
        "a,a",
        ",a",
        "a,",
        "a,,b",
        "ab",
        "",
    ]
    words += ["x", "a,x", "x,x", "c,x,x", "x,a", "a,b,c,x"] if others else []
    return [word for word in words if regex.fullmatch(word)]


def test_12_9_all_needed() -> None:
    """a, b and c, with a comma between each two."""
    expect(objects("abc"), ["a,b,c"], at="a, b, c, all needed")


def test_12_9_none_needed() -> None:
    """Any of them, in order; never a comma without a neighbour on each side."""
    wanted = ["a", "b", "c", "a,b", "a,c", "b,c", "a,b,c"]
    expect(objects(""), wanted, at="a?, b?, c?: at least one")


def test_12_9_the_middle_is_needed() -> None:
    """b must be there; a in front may be missing, and then no comma leads."""
    expect(objects("b"), ["b", "a,b", "b,c", "a,b,c"], at="a?, b, c?")


def test_12_9_the_first_is_needed() -> None:
    """No case may begin behind it."""
    expect(objects("a"), ["a", "a,b", "a,c", "a,b,c"], at="a, b?, c?")


def test_12_9_others_follow_any_number_of_times() -> None:
    """x may follow whatever stands there, and stand alone if nothing is needed."""
    expect(objects("a", others=True), ["a", "a,b", "a,c", "a,b,c", "a,x", "a,b,c,x"],
           at="a, b?, c?, then x any number of times")  # fmt: skip
    wanted = ["a", "b", "c", "a,b", "a,c", "b,c", "a,b,c", "x", "a,x", "x,x", "c,x,x", "a,b,c,x"]
    expect(objects("", others=True), wanted, at="a?, b?, c?, then x any number of times")


def size(pattern: Any) -> int:
    parts = getattr(pattern, "parts", None) or getattr(pattern, "choices", None) or ()
    inner = (pattern.part,) if isinstance(pattern, Repeat) else ()
    return 1 + sum(map(size, (*parts, *inner)))


def test_12_9_cases_grow_with_their_number_not_with_its_power() -> None:
    """16 members that may be missing: 17 cases at most, and not 65,536."""
    members: list[Pattern] = [concat(chr(97 + i)) for i in range(16)]
    pattern = object_pattern(members, [False] * 16, None, concat(","))
    expect(size(pattern) < 5_000, True, at=f"16 members: {size(pattern):,} parts, below 5,000")


def test_12_9_numbers_are_not_spelled_out() -> None:
    """Five digits: cases for each digit, and not one for each of 40,001 numbers."""
    pattern = digits_between("10000", "50000")
    expect(size(pattern) < 5_000, True, at=f"five digits: {size(pattern):,} parts, below 5,000")
    regex = re.compile(as_regex(pattern))
    texts = ["09999", "10000", "49999", "50000", "50001"]
    found = [text for text in texts if regex.fullmatch(text)]
    expect(found, texts[1:4], at="10000 to 50000")
