"""Find out whether a function of the learner returned something else than its signature promises.

Only used on a test that has failed: the test runs once more under a profiler that looks at what the
watched functions return, or yield, in whichever thread.
"""

from __future__ import annotations

import dataclasses
import dis
import inspect
import re
import sys
import threading
import typing
from collections.abc import Generator, Iterable, Iterator
from functools import lru_cache
from numbers import Integral, Real
from types import CodeType, FrameType, UnionType
from typing import Any

ARRAY = r"numpy\.ndarray\[(?:Any|tuple\[[^]]*\]), numpy\.dtype\[(.*?)\]\]"
"""How Python writes what a signature calls `NDArray[np.int64]`."""

LOOKED_AT = 100
"""Items of a long list."""


class _Found(BaseException):
    """Ends the test: what it was run for is known."""


def wrong_return(item: Any, watched: dict[str, dict[str, str]]) -> dict[str, str] | None:
    """Run the test again, as far as the first watched function that returns a wrong type; None if
    none does.

    Args:
        item: the failed pytest item.
        watched: file -> qualified function name -> module, the holes of the phase.

    Returns:
        {"file", "function", "verb", "type", "promised", "inside"}: names of the types; the verb is
        "returned", or "yielded" of a generator; "inside" says what of the value is wrong, if it is
        not all of it: "its `positions` is a list".
    """
    found: list[dict[str, str]] = []
    promises: dict[CodeType, Any] = {}

    def profiler(frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if event != "return" or found or code.co_qualname not in watched.get(code.co_filename, {}):
            return
        yields = bool(code.co_flags & inspect.CO_GENERATOR)
        if code.co_flags & inspect.CO_ASYNC_GENERATOR or not _gives(frame, yields, value):
            return
        if code not in promises:
            promise = _promise(frame, code.co_qualname)
            promises[code] = _each_of(promise) if yields else promise
        promise = promises[code]
        if promise is None:
            return
        inside = ""
        if _fits(value, promise):
            inside, promise = _wrong_inside(value, promise)
        if inside or not _fits(value, promise):
            found.append(
                {
                    "file": code.co_filename,
                    "function": code.co_qualname,
                    "verb": "yielded" if yields else "returned",
                    "type": type(value).__name__,
                    "promised": _name(promise),
                    "inside": inside,
                }
            )
            if threading.current_thread() is threading.main_thread():
                raise _Found  # of another, Python would print it

    _forget(watched)
    previous = sys.getprofile()
    sys.setprofile(profiler)
    threading.setprofile(profiler)  # ranks, for one, are threads that a test starts
    try:
        item.runtest()
    except BaseException:
        pass
    finally:
        threading.setprofile(None)
        sys.setprofile(previous)
    return found[0] if found else None


def _forget(watched: dict[str, dict[str, str]]) -> None:
    """Empty the caches of the watched functions: else one that has one does not run again."""
    for names in watched.values():
        for name, module in names.items():
            function = getattr(sys.modules.get(module), name, None)
            if callable(clear := getattr(function, "cache_clear", None)):
                clear()


def _promise(frame: FrameType, name: str) -> Any:
    """The return annotation of the running function, resolved; None if there is none or it cannot
    be resolved."""
    target: Any = frame.f_globals
    for part in name.split("."):
        target = target.get(part) if isinstance(target, dict) else vars(target).get(part)
        if target is None:
            return None
    if isinstance(target, property):
        target = target.fget
    target = getattr(target, "__func__", target)
    try:
        return typing.get_type_hints(target).get("return")
    except Exception:
        return None


def _gives(frame: FrameType, yields: bool, value: Any) -> bool:
    """Whether a function gives its caller a value here: not where it is left by an exception, a
    coroutine only waits, or a generator ends."""
    where = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if yields:  # Python 3.13 stands behind the yield already
        return where in ("YIELD_VALUE", "RESUME") and value is not None
    return where.startswith("RETURN")


def _each_of(promise: Any) -> Any:
    """Of what a generator promises, the type of each that it yields; None if it does not say."""
    parts = typing.get_args(promise)
    return parts[0] if typing.get_origin(promise) in (Iterator, Iterable, Generator) else None


def _wrong_inside(value: Any, promise: Any) -> tuple[str, Any]:
    """("its `positions` is of type list", what was promised of it) of the first part of a tuple, a
    list or a dataclass that is of a wrong type; ("", promise) if there is none. What lies deeper,
    or in a dict, is the tests' business."""
    origin, kinds = typing.get_origin(promise), typing.get_args(promise)
    if origin is typing.Union or origin is UnionType:
        return _wrong_inside(value, next(kind for kind in kinds if _fits(value, kind)))
    parts: list[tuple[str, Any, Any]] = []
    if origin is tuple and kinds[1:] != (...,):
        if len(value) != len(kinds):
            return f"it has {len(value)} parts, not {len(kinds)}", promise
        parts = [(f"its part {n}", *both) for n, both in enumerate(zip(value, kinds, strict=True))]
    elif origin in (list, tuple):
        parts = [(f"its item {n}", each, kinds[0]) for n, each in enumerate(value[:LOOKED_AT])]
    elif dataclasses.is_dataclass(value):
        kind: Any = type(value)
        fields = _fields(kind).items()
        parts = [(f"its `{name}`", getattr(value, name, None), kind) for name, kind in fields]
    for name, part, kind in parts:
        if not _fits(part, kind) and not _counts_as(part, kind):
            return f"{name} is of type {type(part).__name__}", kind
    return "", promise


@lru_cache
def _fields(kind: type) -> dict[str, Any]:
    """The fields of a dataclass; none if its annotations cannot be resolved."""
    try:
        hints = typing.get_type_hints(kind)
    except Exception:
        return {}
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _counts_as(part: Any, kind: Any) -> bool:
    """A number of NumPy does where one of Python is promised: it compares by its value."""
    numbers = {int: Integral, float: Real}
    return kind in numbers and isinstance(part, numbers[kind])


def _fits(value: Any, promise: Any) -> bool:
    """Whether the outermost type is right."""
    if promise is type(None):
        return value is None
    origin = typing.get_origin(promise)
    if origin is typing.Union or origin is UnionType:
        return any(_fits(value, part) for part in typing.get_args(promise))
    if origin is typing.Annotated:
        return _fits(value, typing.get_args(promise)[0])
    kind = origin or promise
    if kind is float:
        kind = (int, float)
    try:
        return isinstance(value, kind) and not (isinstance(value, bool) and kind is int)
    except TypeError:  # Any, TypeVar, Literal …: no claim
        return True


def _name(promise: Any) -> str:
    if promise is type(None):
        return "None"
    if isinstance(promise, type) and not typing.get_origin(promise):
        return promise.__name__
    text = re.sub(ARRAY, r"NDArray[\1]", str(promise).replace("typing.", ""))
    text = text.replace("collections.abc.", "")
    return re.sub(r"\bmini_vllm(\.\w+)*\.", "", text).replace("numpy.", "np.")
