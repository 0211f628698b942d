"""Patterns: the small trees into which regular expressions, schemas and grammars are parsed.

    Chars    one character out of some ranges of code points
    Concat   its parts, one after the other        Union   one of its choices
    Repeat   low to high copies of one part        Call    a text of another rule, by its name
    Anchor   the empty text, but only at the start or at the end

A pattern describes which texts are legal; `regex_automaton.py` compiles it to recognise them.
"""

from __future__ import annotations

import re
import re._constants as op  # type: ignore[import-untyped]
import re._parser as sre  # type: ignore[import-untyped]
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

MAX_LENGTH = 20_000
"""Most characters of a regular expression."""
MAX_CODE_POINT = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
"""Code points that exist only for UTF-16 and occur in no text."""

Range = tuple[int, int]
"""First and last, both included."""


@dataclass(frozen=True)
class Chars:
    ranges: tuple[Range, ...]


@dataclass(frozen=True)
class Concat:
    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Union:
    choices: tuple[Pattern, ...]


@dataclass(frozen=True)
class Repeat:
    part: Pattern
    low: int
    high: int | None  # None: any number


@dataclass(frozen=True)
class Call:
    rule: str


@dataclass(frozen=True)
class Anchor:
    at_end: bool  # True: $, open at the end of the text alone; False: ^, at its start


Pattern = Chars | Concat | Union | Repeat | Call | Anchor
Rules = dict[str, Pattern]
EMPTY = Concat(())
NOTHING = Union(())
"""The pattern that no text matches."""
ANCHORS = (Anchor(at_end=False), Anchor(at_end=True))
"""^ and $."""


# ---------------------------------------------------------------- making them
def chars(ranges: Iterable[Range]) -> Chars:
    """One character out of `ranges`, which may overlap; surrogates are left out."""
    return Chars(tuple(_without(_merged(ranges), [SURROGATES])))


def any_but(ranges: Iterable[Range]) -> Chars:
    """One character that lies in none of `ranges`."""
    return chars(_without([(0, MAX_CODE_POINT)], _merged(ranges)))


def intersection(first: Iterable[Range], second: Iterable[Range]) -> tuple[Range, ...]:
    """The code points that are in both."""
    outside = _without([(0, MAX_CODE_POINT)], _merged(second))
    return tuple(_without(_merged(first), outside))


@lru_cache(maxsize=4096)
def character(char: str) -> Chars:
    """Exactly this character."""
    return chars([(ord(char), ord(char))])


def text(string: str) -> Concat:
    """Exactly this text."""
    return Concat(tuple(map(character, string)))


def one_of(texts: Iterable[str], spell: Callable[[str], Pattern] = character) -> Pattern:
    """One of many texts, as a tree in which each common prefix is stored once.

    ::

        card care cat   ->   ca (r (d | e) | t)

    Args:
        spell: how a single character is written.
    """
    remaining = sorted(set(texts))
    if not remaining:
        return NOTHING
    first, last = remaining[0], remaining[-1]  # sorted: a prefix of these two is one of all
    shared = 0
    while shared < len(first) and first[shared] == last[shared]:
        shared += 1
    parts: list[Pattern] = [spell(char) for char in first[:shared]]
    tails = [string[shared:] for string in remaining]
    branches = [
        one_of(branch, spell) for _, branch in groupby(filter(None, tails), lambda tail: tail[0])
    ]
    if branches:
        rest = Union(tuple(branches))
        parts.append(Repeat(rest, 0, 1) if tails[0] == "" else rest)
    return Concat(tuple(parts))


def concat(*parts: Pattern | str) -> Concat:
    return Concat(tuple(text(part) if isinstance(part, str) else part for part in parts))


def union(*choices: Pattern | str) -> Union:
    return Union(tuple(text(choice) if isinstance(choice, str) else choice for choice in choices))


def lengths_of(pattern: Pattern) -> tuple[int, int | None]:
    """The shortest and the longest length of its texts; None: there is no longest."""
    match pattern:
        case Chars():
            return 1, 1
        case Concat(parts):
            pairs = [lengths_of(part) for part in parts]
            tops = [high for _, high in pairs if high is not None]
            return sum(low for low, _ in pairs), sum(tops) if len(tops) == len(pairs) else None
        case Union(choices):
            pairs = [lengths_of(choice) for choice in choices] or [(0, 0)]
            tops = [high for _, high in pairs if high is not None]
            return min(low for low, _ in pairs), max(tops) if len(tops) == len(pairs) else None
        case Repeat(part, low, high):
            least, most = lengths_of(part)
            if most == 0 or high == 0:
                return least * low, 0
            return least * low, None if most is None or high is None else most * high
        case Call():
            return 0, None
    return 0, 0


def is_anchored(pattern: Pattern) -> bool:
    """Whether it begins with ^ and ends with $, so that no text can stand before or after it."""
    match pattern:
        case Concat((first, *_, last)):
            return (first, last) == ANCHORS
    return False


def mapped(pattern: Pattern, leaf: Callable[[Pattern], Pattern]) -> Pattern:
    """The same tree with `leaf(node)` in place of each Chars, Call and Anchor."""
    match pattern:
        case Concat(parts):
            return Concat(tuple(mapped(part, leaf) for part in parts))
        case Union(choices):
            return Union(tuple(mapped(choice, leaf) for choice in choices))
        case Repeat(part, low, high):
            return Repeat(mapped(part, leaf), low, high)
    return leaf(pattern)


def optional(part: Pattern) -> Repeat:
    return Repeat(part, 0, 1)


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """The ranges sorted and without overlaps."""
    merged: list[Range] = []
    for low, high in sorted(pair for pair in ranges if pair[0] <= pair[1]):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


def _without(ranges: list[Range], holes: list[Range]) -> list[Range]:
    """`ranges` without `holes`; both are sorted and without overlaps."""
    for hole_low, hole_high in holes:
        pieces = [
            piece
            for low, high in ranges
            for piece in ((low, min(high, hole_low - 1)), (max(low, hole_high + 1), high))
        ]
        ranges = [(low, high) for low, high in pieces if low <= high]
        ranges = _merged(ranges)
    return ranges


# ---------------------------------------------------------------- regular expressions
_DIGITS = ((0x30, 0x39),)
_SPACES = ((0x09, 0x0D), (0x20, 0x20))
_WORDS = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_CATEGORIES = {
    op.CATEGORY_DIGIT: chars(_DIGITS), op.CATEGORY_NOT_DIGIT: any_but(_DIGITS),
    op.CATEGORY_SPACE: chars(_SPACES), op.CATEGORY_NOT_SPACE: any_but(_SPACES),
    op.CATEGORY_WORD: chars(_WORDS), op.CATEGORY_NOT_WORD: any_but(_WORDS),
}  # fmt: skip
_ANCHORS = {op.AT_BEGINNING: False, op.AT_BEGINNING_STRING: False}
_END_ANCHORS = {op.AT_END: True, op.AT_END_STRING: True}
_REFUSED = {
    op.ASSERT: "a lookaround; write out what may stand there",
    op.ASSERT_NOT: "a lookaround; write out what may stand there",
    op.GROUPREF: "a backreference, which no finite automaton can follow; write it without",
    op.GROUPREF_EXISTS: "a conditional group; write both cases out with |",
    op.ATOMIC_GROUP: "an atomic group; use a plain group",
    op.POSSESSIVE_REPEAT: "a possessive repeat; use a plain one",
}


_BEGINS_A_NAME = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\(\?<(?=[A-Za-z_])", re.DOTALL)
"""The start of a named group in JavaScript; escapes and classes are matched first, to skip them."""


def parse_regex(pattern: str) -> Pattern:
    """Read a regular expression as Python's `re` does with `re.ASCII`.

    A group may be named as in JavaScript, as schemas do: `(?<year>[0-9]+)`. Lazy repeats are read
    as greedy ones: the set of texts that match is the same. Anchors are kept. Features that no
    finite automaton can implement are refused by name.

    Raises:
        ValueError: if `re` refuses it, or it uses flags, lookarounds, word borders,
            backreferences, or anything after `$`.
    """
    if len(pattern) > MAX_LENGTH:
        raise ValueError(
            f"regex {_short(pattern)} has {len(pattern):,} characters; at most {MAX_LENGTH:,} are "
            "compiled; shorten it"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sets that a later Python may read differently
            python = _BEGINS_A_NAME.sub(lambda found: found[1] or "(?P<", pattern)
            tree = sre.parse(python, re.ASCII)
        if tree.state.flags & ~(re.ASCII | re.UNICODE):
            raise ValueError(_refusal(pattern, "flags; spell them out"))
        return _read(tree, pattern, last=True)
    except re.error as error:
        if error.msg.lower() == "bad escape \\p":
            what = "\\p, a class of Unicode; write its ranges out, such as [a-z\u00e0-\u00ff]"
            raise ValueError(_refusal(pattern, what)) from None
        place = "" if error.pos is None else f" at position {error.pos}"
        raise ValueError(f"regex {_short(pattern)}: {error.msg}{place}") from None
    except (RecursionError, OverflowError):
        raise ValueError(_refusal(pattern, "groups too deep or repeats too large")) from None


def _read(tree: Any, pattern: str, last: bool) -> Pattern:
    """A sequence of `re`'s own tree; `last`: nothing can follow it."""
    items = list(tree)
    num_before_anchors = len(items)
    while num_before_anchors and items[num_before_anchors - 1][0] is op.AT:
        num_before_anchors -= 1
    parts = [
        _read_item(kind, value, pattern, last and index >= num_before_anchors - 1)
        for index, (kind, value) in enumerate(items)
    ]
    return parts[0] if len(parts) == 1 else Concat(tuple(parts))


def _read_item(kind: Any, value: Any, pattern: str, last: bool) -> Pattern:
    if kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
        return _read_chars(kind, value)
    if kind is op.BRANCH:
        return Union(tuple(_read(branch, pattern, last) for branch in value[1]))
    if kind is op.SUBPATTERN:
        _, added, removed, inner = value
        if added or removed:
            raise ValueError(_refusal(pattern, "flags; spell them out"))
        return _read(inner, pattern, last)
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        low, high, inner = value
        limit = None if high is op.MAXREPEAT else high
        return Repeat(_read(inner, pattern, last and high == 1), low, limit)
    if kind is op.AT and value in _ANCHORS:
        return Anchor(at_end=False)
    if kind is op.AT and value in _END_ANCHORS:
        if not last:
            raise ValueError(_refusal(pattern, "$ with something after it; put it at the end"))
        return Anchor(at_end=True)
    if kind is op.AT:
        raise ValueError(_refusal(pattern, "\\b or \\B; name the characters beside it"))
    raise ValueError(_refusal(pattern, _REFUSED.get(kind, f"{kind}, which is unknown here")))


def _read_chars(kind: Any, value: Any) -> Chars:
    if kind is op.ANY:
        return any_but([(0x0A, 0x0A)])
    if kind is op.LITERAL:
        return chars([(value, value)])
    if kind is op.NOT_LITERAL:
        return any_but([(value, value)])
    ranges: list[Range] = []
    for part, detail in value:
        if part is op.LITERAL:
            ranges.append((detail, detail))
        elif part is op.RANGE:
            ranges.append(detail)
        elif part is op.CATEGORY:
            ranges.extend(_CATEGORIES[detail].ranges)
    negated = value[0][0] is op.NEGATE
    return any_but(ranges) if negated else chars(ranges)


def _refusal(pattern: str, what: str) -> str:
    return f"regex {_short(pattern)} uses {what}"


def _short(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 80 else pattern[:77] + "...")
