"""Find out whether a function of the learner returned something else than its signature promises.

Only used on a test that has failed: the test runs once more under a profiler that looks at what the
watched functions return, or yield, in whichever thread.
"""

from __future__ import annotations

import dis
import inspect
import re
import sys
import threading
import typing
from collections.abc import Generator, Iterable, Iterator
from types import CodeType, FrameType, UnionType
from typing import Any

ARRAY = r"numpy\.ndarray\[(?:Any|tuple\[[^]]*\]), numpy\.dtype\[(.*?)\]\]"
"""How Python writes what a signature calls `NDArray[np.int64]`."""


class _Found(BaseException):
    """Ends the test: what it was run for is known."""


def wrong_return(item: Any, watched: dict[str, dict[str, str]]) -> dict[str, str] | None:
    """Run the test again, as far as the first watched function that returns a wrong type; None if
    none does.

    Args:
        item: the failed pytest item.
        watched: file -> qualified function name -> module, the holes of the phase.

    Returns:
        {"file", "function", "verb", "type", "promised"}: names of the types; the verb is
        "returned", or "yielded" of a generator.
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
        if promise is not None and not _fits(value, promise):
            found.append(
                {
                    "file": code.co_filename,
                    "function": code.co_qualname,
                    "verb": "yielded" if yields else "returned",
                    "type": type(value).__name__,
                    "promised": _name(promise),
                }
            )
            if threading.current_thread() is threading.main_thread():
                raise _Found  # of another, Python would print it

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


def _fits(value: Any, promise: Any) -> bool:
    """Whether the outermost type is right; what lies inside a list or dict is the tests'
    business."""
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
