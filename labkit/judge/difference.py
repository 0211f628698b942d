"""Where two values differ first, for values that are too long to be compared by eye."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from labkit.inside.alarm import shorten

SEEN_AT_ONCE = 60
"""Characters of a value that need no help."""
MOST = 60
"""Characters of each side of a difference."""


def first_difference(yours: Any, expected: Any) -> str:
    """ "item [3][1] is 5, expected 7"; "" where the values are short, or of no kind that has parts.

    Lists that hold other things than expected say which is the first too many, or missing: of words
    that are sorted by length, the shortest one.
    """
    try:
        if max(len(repr(yours)), len(repr(expected))) <= SEEN_AT_ONCE:
            return ""
        return _of(_plain(yours), _plain(expected), "")
    except Exception:  # what a learner's object answers may raise anything
        return ""


def about(value: Any) -> str:
    """A value on one line: a long one with its size, and its beginning."""
    plain, shape = _plain(value), getattr(value, "shape", None)
    text = repr(plain)
    if shape is not None:
        kind = f"{type(value).__name__} {list(shape)}"
        return f"{kind}: {shorten(text, MOST)}"
    if len(text) <= 2 * MOST:
        return text
    size = f"{len(plain)} items: " if isinstance(plain, list | tuple | dict | set) else ""
    return f"{size}{text[: 2 * MOST]} …"


def _plain(value: Any) -> Any:
    """Arrays and tensors as lists."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "shape") else value


def _of(yours: Any, expected: Any, where: str) -> str:
    if isinstance(yours, list | tuple) and isinstance(expected, list | tuple):
        return _of_lists(yours, expected, where)
    if isinstance(yours, dict) and isinstance(expected, dict):
        for key in [*expected, *yours]:
            place = f"{where}[{_short(key)}]"
            if key not in yours or key not in expected:
                return f"{place} {'is missing' if key in expected else 'should not be there'}"
            if _differ(yours[key], expected[key]):
                return _of(yours[key], expected[key], place)
    if isinstance(yours, str | bytes) and isinstance(expected, str | bytes) and not where:
        at = _first_index(yours, expected)
        start = max(at - MOST // 3, 0)
        both = (_short(text[start : at + MOST // 3]) for text in (yours, expected))
        return "at character {}: {}, expected {}".format(at, *both)
    if not _differ(yours, expected):
        return ""
    return f"{'item ' * bool(where)}{where or 'it'} is {_short(yours)}, expected {_short(expected)}"


def _of_lists(yours: Any, expected: Any, where: str) -> str:
    """Where two lists differ first."""
    try:
        extra = next((item for item in yours if item not in set(expected)), None)
        gone = next((item for item in expected if item not in set(yours)), None)
        unlike = len(set(yours)) == len(yours) and len(set(expected)) == len(expected)
    except TypeError:  # items that cannot be in a set
        unlike = False
    if unlike and len(yours) != len(expected) and (extra is not None or gone is not None):
        parts = [f"{_short(extra)} is too many"] if extra is not None else []
        parts += [f"{_short(gone)} is missing"] if gone is not None else []
        return f"{where}{': ' * bool(where)}first difference: {', and '.join(parts)}"
    at = _first_index(yours, expected)
    sizes = f" ({len(yours)} items, expected {len(expected)})" * (len(yours) != len(expected))
    if at >= min(len(yours), len(expected)):
        return f"{where or 'it'} has {len(yours)} items, expected {len(expected)}" if sizes else ""
    return _of(yours[at], expected[at], f"{where}[{at}]") + sizes


def _first_index(yours: Any, expected: Any) -> int:
    pairs: Iterable[tuple[Any, Any]] = zip(yours, expected, strict=False)
    differing = (i for i, (mine, theirs) in enumerate(pairs) if _differ(mine, theirs))
    return next(differing, min(len(yours), len(expected)))


def _differ(yours: Any, expected: Any) -> bool:
    try:
        return bool(yours != expected) and not (yours != yours and expected != expected)
    except Exception:  # arrays inside, or objects that do not compare
        return repr(yours) != repr(expected)


def _short(value: Any) -> str:
    return shorten(repr(value), MOST)
