"""Checks of single values. Every message names the value, the limit and the fix."""

from __future__ import annotations

from collections.abc import Iterable


def require_at_least(name: str, value: int, minimum: int, fix: str) -> None:
    """Raises ValueError unless ``value`` is a whole number, and at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}; it must be a whole number; {fix}")
    if value < minimum:
        raise ValueError(f"{name} is {value}; it must be at least {minimum}; {fix}")


def require_one_of(name: str, value: object, choices: Iterable[str]) -> None:
    """Raises ValueError unless ``value`` is one of ``choices``."""
    known = tuple(choices)
    if value not in known:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(known)}")


def require_flag(name: str, value: object) -> None:
    """Raises ValueError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; it must be True or False")
