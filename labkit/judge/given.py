"""What the learner's function was given when it raised an error: the error alone says too little
of a case that the test's title does not spell out."""

from __future__ import annotations

import dis
from collections.abc import Container, Mapping
from types import CodeType, FrameType
from typing import Any

from labkit.inside.alarm import shorten

MAX_VALUE = 80
MAX_CALL = 240
PLAIN = (bool, int, float, str, bytes, type(None))
MAX_DEPTH = 3
MAX_PARTS = 4


def given(error: BaseException, files: Container[str]) -> str:
    """The outermost call into these files in the traceback: "expand(ids=[1, 9], lengths=[])".

    Of a tensor or an array it shows the shape, of another object the type. A name that the function
    binds anew is "...", for its first value is gone. "" if the traceback has no such call, or one
    without arguments.
    """
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in files:
            return _call(trace.tb_frame)
        trace = trace.tb_next
    return ""


def case_of(parameters: Mapping[str, Any]) -> str:
    """The values that a test was run with, where it runs with several: "prompt=[1, 9], lengths=[]".

    Those that are no plain data are left out: they are what the test's fixtures are told.
    """
    plain = [f"{n}={_shown(value)}" for n, value in parameters.items() if _is_plain(value)]
    return shorten(", ".join(plain), MAX_CALL)


def _call(frame: FrameType) -> str:
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    bound = _bound(code)
    said = [
        f"{name}={'...' if name in bound or name not in values else _shown(values[name])}"
        for name in names
        if name not in ("self", "cls")
    ]
    return shorten(f"{code.co_qualname}({', '.join(said)})", MAX_CALL) if said else ""


def _bound(code: CodeType) -> set[str]:
    """The names that a function's body stores or deletes."""
    found: set[str] = set()
    for each in dis.get_instructions(code):
        if each.opname.startswith(("STORE_FAST", "STORE_DEREF", "DELETE_FAST")):
            found |= set(each.argval) if isinstance(each.argval, tuple) else {each.argval}
    return found


def _shown(value: Any, depth: int = MAX_DEPTH) -> str:
    """Plain data as Python writes it; else what it is. No code of the value's own class runs."""
    if _is_plain(value):
        return shorten(repr(value), MAX_VALUE)
    kind = type(value)
    if kind.__module__ in ("torch", "numpy") and kind.__name__ in ("Tensor", "ndarray"):
        return f"{kind.__name__}{list(value.shape)}"
    if type(value) in (list, tuple) and len(value) <= MAX_PARTS and depth:
        parts = ", ".join(_shown(part, depth - 1) for part in value)
        return f"[{parts}]" if type(value) is list else f"({parts})"
    if type(value) in (list, tuple, dict, set):
        return f"{kind.__name__} of {len(value)}"
    return f"a {kind.__name__}"


def _is_plain(value: Any, depth: int = MAX_DEPTH) -> bool:
    if type(value) in PLAIN:
        return True
    if depth == 0 or type(value) not in (list, tuple, dict, set):
        return False
    parts = [*value, *(value.values() if type(value) is dict else ())]
    return all(_is_plain(part, depth - 1) for part in parts)
