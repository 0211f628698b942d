"""Patterns of JSON strings and numbers.

Source: RFC 8259 for the texts; jsonschema's meaning of bounds is Draft 2020-12, section 6.2.
"""

from __future__ import annotations

import json
from decimal import Decimal
from functools import lru_cache

from mini_vllm.structured_output.patterns import (
    EMPTY,
    MAX_CODE_POINT,
    NOTHING,
    Call,
    Chars,
    Concat,
    Pattern,
    Range,
    Repeat,
    Rules,
    Union,
    any_but,
    chars,
    concat,
    intersection,
    mapped,
    optional,
    parse_regex,
    union,
)

DIGIT = chars([(0x30, 0x39)])
DIGITS = Repeat(DIGIT, 0, None)
ZEROS = Repeat(chars([(0x30, 0x30)]), 0, None)
NATURAL = union("0", concat(parse_regex("[1-9]"), DIGITS))
FRACTION = concat(".", Repeat(DIGIT, 1, None))
EXPONENT = parse_regex("[eE][+-]?[0-9]+")
INTEGER = concat(optional(concat("-")), NATURAL)
NUMBER = concat(INTEGER, optional(FRACTION), optional(EXPONENT))

_RAW = ((0x20, 0x21), (0x23, 0x5B), (0x5D, MAX_CODE_POINT))  # what needs no escape
_SHORT_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


# ---------------------------------------------------------------- strings and objects
@lru_cache(maxsize=4096)
def json_char(ranges: tuple[Range, ...], free: bool = False) -> Pattern:
    r"""All ways to write one character out of `ranges` between quotes.

    ::

        a           a                       \u0061 too if free
        "           \"                      \u0022 too if free
        U+0007      \u0007
        é           é  or  \u00e9
        U+1F600     itself  or  \ud83d\ude00, a pair of surrogates

    These are the forms of `json.dumps`, with `ensure_ascii` and without. With `free`, every escape
    of JSON is allowed. Half a surrogate pair is never legal.
    """
    raw = chars(intersection(ranges, _RAW))
    choices: list[Pattern] = [raw] if raw.ranges else []
    short = dict(_SHORT_ESCAPES) | ({"/": "/"} if free else {})
    letters = [
        (ord(letter), ord(letter))
        for char, letter in short.items()
        if intersection(ranges, [(ord(char), ord(char))])
    ]
    if letters:
        choices.append(concat("\\", chars(letters)))
    plain = {ord(char) for char in _SHORT_ESCAPES} | set(range(0x20, 0x7F))
    for low, high in ranges if free else _less(ranges, plain):
        for first, last in ((low, min(high, 0xD7FF)), (max(low, 0xE000), min(high, 0xFFFF))):
            choices += [concat("\\u", digits) for digits in _digit_ranges(first, last, 16, 4)]
        choices += _surrogate_pairs(max(low, 0x10000), high)
    return choices[0] if len(choices) == 1 else Union(tuple(choices))


def json_string_of(pattern: Pattern) -> Pattern:
    """`pattern` with each character in the forms that it may have between the quotes."""
    return mapped(pattern, lambda leaf: json_char(leaf.ranges) if isinstance(leaf, Chars) else leaf)


def string_but(names: list[str]) -> Pattern:
    """Any text except `names`, between quotes: a trie of the names, left by any other character.

    After that character any text may follow, by calls of the rule `char`.
    """
    tails: dict[str, list[str]] = {}
    for name in names:
        if name:
            tails.setdefault(name[0], []).append(name[1:])
    anything = Repeat(Call("char"), 0, None)
    other = any_but([(ord(char), ord(char)) for char in tails])
    choices: list[Pattern] = [concat(json_char(other.ranges), anything)]
    for char, rest in tails.items():
        choices.append(concat(written(char), string_but(rest)))
    if "" not in names:
        choices.append(EMPTY)
    return Union(tuple(choices))


def written(char: str) -> Pattern:
    """One character as `json.dumps` writes it between quotes."""
    return json_char(((ord(char), ord(char)),))


def literal(value: object, space: Pattern) -> Pattern:
    """One JSON value, its strings as `json.dumps` writes them, with `space` where it is allowed."""
    if isinstance(value, str):
        return concat('"', *map(written, value), '"')
    if isinstance(value, list):
        return in_brackets("[", [literal(item, space) for item in value], "]", space)
    if isinstance(value, dict):
        pairs = [pair(literal(k, space), literal(v, space), space) for k, v in value.items()]
        return in_brackets("{", pairs, "}", space)
    return concat(json.dumps(value))


def pair(key: Pattern, value: Pattern, space: Pattern) -> Pattern:
    return concat(key, space, ":", space, value)


def in_brackets(left: str, items: list[Pattern], right: str, space: Pattern) -> Pattern:
    """All items, in order, with commas between them."""
    parts: list[Pattern | str] = []
    for index, item in enumerate(items):
        parts += [item] if index == 0 else [space, ",", space, item]
    return concat(left, space, *parts, space, right)


def object_pattern(
    members: list[Pattern], needed: list[bool], others: Pattern | None, comma: Pattern
) -> Pattern:
    """One or more members with commas between them, none before the first or after the last.

    Each member is there once, in order, and may be missing unless `needed`; `others` may follow
    any number of times. Which comma is right depends on whether anything stands in front, so the
    first member that is there decides: n + 1 cases, and not 2**n::

        a? b c?    ->   a , b (, c)?   |   b (, c)?

    A case may only begin with member i if none before it is needed.

    Args:
        members: a `"name": value` each.
        needed: for each, whether it must be there.
        others: any further member, or None.
        comma: what stands between two members, white space included.

    Returns:
        The arguments' patterns joined by Concat, Union and Repeat alone.
    """
    following: list[Pattern] = []  # of each place: what may come behind a member before it
    for member, must in zip(members, needed, strict=True):
        part = concat(comma, member)
        following.append(part if must else optional(part))
    if others is not None:
        following.append(Repeat(concat(comma, others), 0, None))
    cases: list[Pattern] = []
    for index, member in enumerate(members + ([others] if others is not None else [])):
        tail = following[index + 1 :] if index < len(members) else following[index:]
        cases.append(Concat((member, *tail)))
        if index < len(members) and needed[index]:
            break
    return Union(tuple(cases))


def _less(ranges: tuple[Range, ...], codes: set[int]) -> tuple[Range, ...]:
    return intersection(ranges, any_but([(code, code) for code in codes]).ranges)


def _surrogate_pairs(low: int, high: int) -> list[Pattern]:
    """The code points from `low` to `high`, above U+FFFF, as two escapes each."""
    pairs: list[Pattern] = []
    for first, last in _aligned(low - 0x10000, high - 0x10000, 1024, 2):
        leads = _digit_ranges(0xD800 + (first >> 10), 0xD800 + (last >> 10), 16, 4)
        trails = _digit_ranges(0xDC00 + (first & 1023), 0xDC00 + (last & 1023), 16, 4)
        pairs.append(concat("\\u", Union(tuple(leads)), "\\u", Union(tuple(trails))))
    return pairs


def _digit_ranges(low: int, high: int, base: int, width: int) -> list[Pattern]:
    """The numbers from `low` to `high` in `width` digits, leading zeros included."""
    patterns: list[Pattern] = []
    for first, last in _aligned(low, high, base, width):
        digits = []
        for place in reversed(range(width)):
            a, b = first // base**place % base, last // base**place % base
            both_cases = {f"{digit:{case}}" for digit in range(a, b + 1) for case in "xX"}
            digits.append(chars([(ord(digit), ord(digit)) for digit in both_cases]))
        patterns.append(Concat(tuple(digits)))
    return patterns


def _aligned(low: int, high: int, base: int, width: int) -> list[tuple[int, int]]:
    """Cut an interval so that each piece is a product of ranges of digits.

    The same cutting as in `regex_automaton.utf8_ranges`, in any base.
    """
    if low > high:
        return []
    for place in range(1, width):
        size = base**place
        if low // size != high // size:
            if low % size:
                border = low - low % size + size
            elif (high + 1) % size:
                border = high - high % size
            else:
                continue
            pieces = _aligned(low, border - 1, base, width)
            return pieces + _aligned(border, high, base, width)
    return [(low, high)]


# ---------------------------------------------------------------- numbers
def integer_range_pattern(low: int | None, high: int | None) -> Pattern:
    """The integers from `low` to `high` as JSON writes them; None: no limit on that side.

    No leading zeros, no plus sign, and 0 has no sign. Each number of digits is a case of its own,
    and inside it `digits_between` decides::

        98 .. 1203   ->   9[89]   |   [1-9]\\d\\d   |   1[01]\\d\\d   |   120[0-3]

    Negative numbers are the mirror: -5 .. -2 is a minus in front of 2 .. 5. An empty interval
    gives NOTHING.
    """
    choices: list[Pattern] = []
    if low is None or low < 0:
        top = -1 if high is None else min(high, -1)
        choices.append(concat("-", _naturals(-top, None if low is None else -low)))
    choices.append(_naturals(max(low or 0, 0), high))
    return Union(tuple(choices))


def _naturals(low: int, high: int | None) -> Pattern:
    """The integers from `low`, at least 0, to `high`: a case for as many digits as `low` has, one
    for as many as `high` has, and one for all numbers of digits in between."""
    if high is not None and low > high:
        return NOTHING
    least, most = str(low), "" if high is None else str(high)
    if len(least) == len(most):
        return _of_one_length(least, most)
    choices = [_of_one_length(least, "9" * len(least))]
    if high is None or len(most) > len(least) + 1:
        longer = Repeat(DIGIT, len(least), len(most) - 2 if most else None)
        choices.append(concat(parse_regex("[1-9]"), longer))
    if most:
        choices.append(_of_one_length("1" + "0" * (len(most) - 1), most))
    return Union(tuple(choices))


BLOCK = 4
"""Most digits of one call of `digits_between`, which writes out 2^n cases for n digits."""


def _of_one_length(low: str, high: str) -> Pattern:
    """`digits_between` for any number of digits, which are compared in blocks of BLOCK digits.

    First blocks are treated as `digits_between` treats first digits. All blocks that lie strictly
    between the first and the last are one case: any digits may follow them.
    """
    if len(low) <= BLOCK:
        return digits_between(low, high)
    first, last, rest = int(low[:BLOCK]), int(high[:BLOCK]), len(low) - BLOCK
    if first == last:
        return concat(low[:BLOCK], _of_one_length(low[BLOCK:], high[BLOCK:]))
    choices: list[Pattern] = []
    if low[BLOCK:] != "0" * rest:
        choices.append(concat(low[:BLOCK], _of_one_length(low[BLOCK:], "9" * rest)))
        first += 1
    if high[BLOCK:] != "9" * rest:
        choices.append(concat(high[:BLOCK], _of_one_length("0" * rest, high[BLOCK:])))
        last -= 1
    if first <= last:
        between = digits_between(f"{first:0{BLOCK}}", f"{last:0{BLOCK}}")
        choices.append(concat(between, Repeat(DIGIT, rest, rest)))
    return Union(tuple(choices))


def digits_between(low: str, high: str) -> Pattern:
    """The digit strings of one length from `low` to `high`, both included.

    Compared digit by digit, not by their count. While the first digits are equal, they are fixed.
    Where they differ, three cases remain::

        120 .. 345   ->   1 and 20 .. 99   |   2 and any two   |   3 and 00 .. 45

    Args:
        low, high: as many digits each, low <= high; empty strings have one text, the empty one.

    Returns:
        A pattern of Chars, Concat, Union and Repeat alone.
    """
    if not low:
        return EMPTY
    if low[0] == high[0]:
        return concat(low[0], digits_between(low[1:], high[1:]))
    rest = len(low) - 1
    between = chars([(ord(low[0]) + 1, ord(high[0]) - 1)])
    return union(
        concat(low[0], digits_between(low[1:], "9" * rest)),
        concat(between, Repeat(DIGIT, rest, rest)),
        concat(high[0], digits_between("0" * rest, high[1:])),
    )


Bound = tuple[Decimal, bool]
"""A number, and whether it is itself excluded."""


def number_range_pattern(low: Bound | None, high: Bound | None) -> Pattern:
    """The decimal numbers between two bounds, without exponents; None: no limit on that side."""
    choices: list[Pattern] = []
    if low is None or low[0] < 0:
        floor = (Decimal(0), True) if high is None or high[0] >= 0 else (-high[0], high[1])
        choices.append(concat("-", _magnitudes(floor, low and (-low[0], low[1]))))
    zero = (Decimal(0), False)
    choices.append(_magnitudes(zero if low is None or low[0] < 0 else low, high))
    return Union(tuple(choices))


def _magnitudes(low: Bound, high: Bound | None) -> Pattern:
    """Numbers of at least 0: the integer part decides, unless it equals that of a bound."""
    if high is not None and high[0] < 0:
        return NOTHING
    first, first_digits = _split(low[0])
    if high is None:
        return union(
            concat(str(first), _fraction_above(first_digits, low[1])),
            concat(_naturals(first + 1, None), optional(FRACTION)),
        )
    last, last_digits = _split(high[0])
    if first > last:
        return NOTHING
    if first == last:
        return concat(str(first), _fraction_between(first_digits, low[1], last_digits, high[1]))
    return union(
        concat(str(first), _fraction_above(first_digits, low[1])),
        concat(_naturals(first + 1, last - 1), optional(FRACTION)),
        concat(str(last), _fraction_below(last_digits, high[1])),
    )


def _split(number: Decimal) -> tuple[int, str]:
    """The integer part, and the digits after the point without trailing zeros."""
    whole, _, digits = f"{number:f}".partition(".")
    return int(whole), digits.rstrip("0")


def _fraction_above(digits: str, strictly: bool) -> Pattern:
    """`.d*` of at least `.digits`; no point means 0."""
    if not digits and not strictly:
        return optional(FRACTION)
    return concat(".", _tail_above(digits, strictly))


def _tail_above(digits: str, strictly: bool) -> Pattern:
    if not digits:
        return concat(DIGITS, parse_regex("[1-9]"), DIGITS) if strictly else DIGITS
    larger = chars([(ord(digits[0]) + 1, ord("9"))])
    return union(concat(larger, DIGITS), concat(digits[0], _tail_above(digits[1:], strictly)))


def _fraction_below(digits: str, strictly: bool) -> Pattern:
    """`.d*` of at most `.digits`; no point means 0."""
    if not digits:
        return NOTHING if strictly else optional(concat(".", "0", ZEROS))
    return optional(concat(".", _tail_below(digits, strictly)))


def _tail_below(digits: str, strictly: bool) -> Pattern:
    """As `_fraction_below`, after the point: at least one digit. `digits` has no trailing zero."""
    smaller = concat(chars([(ord("0"), ord(digits[0]) - 1)]), DIGITS)
    return union(smaller, concat(digits[0], _end_below(digits[1:], strictly)))


def _end_below(digits: str, strictly: bool) -> Pattern:
    """As `_tail_below`, but the number may also end here."""
    if digits:
        return optional(_tail_below(digits, strictly))
    return NOTHING if strictly else ZEROS


def _fraction_between(low: str, low_strictly: bool, high: str, high_strictly: bool) -> Pattern:
    """`.d*` between two fractions of the same whole number."""
    if low > high or (low == high and (low_strictly or high_strictly)):
        return NOTHING
    if low == high:
        return concat(".", low, ZEROS) if low else _fraction_below("", False)
    if not low and not low_strictly:
        return _fraction_below(high, high_strictly)
    return concat(".", _tail_between(low, low_strictly, high, high_strictly))


def _tail_between(low: str, low_strictly: bool, high: str, high_strictly: bool) -> Pattern:
    """Digits between `low` and the larger `high`; `low` is continued with zeros."""
    if not low and not low_strictly:
        return _end_below(high, high_strictly)
    a, b = low[:1] or "0", high[0]
    if a == b:
        return concat(a, _tail_between(low[1:], low_strictly, high[1:], high_strictly))
    return union(
        concat(a, _tail_above(low[1:], low_strictly)),
        concat(chars([(ord(a) + 1, ord(b) - 1)]), DIGITS),
        concat(b, _end_below(high[1:], high_strictly)),
    )


# ---------------------------------------------------------------- any JSON
def json_rules(space: Pattern) -> Rules:
    """Rules that schemas call: `string`, `char` and `value`, any JSON."""
    value, string = Call("value"), Call("string")
    more = Repeat(concat(space, ",", space, value), 0, None)
    member = pair(string, value, space)
    members = concat(member, Repeat(concat(space, ",", space, member), 0, None))
    return {
        "char": json_char(((0, MAX_CODE_POINT),), free=True),
        "string": concat('"', Repeat(Call("char"), 0, None), '"'),
        "value": union(
            string, NUMBER, "true", "false", "null",
            concat("[", space, optional(concat(value, more, space)), "]"),
            concat("{", space, optional(concat(members, space)), "}"),
        ),
    }  # fmt: skip
