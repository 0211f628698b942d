"""What a hidden test asked of your code, as lines that you can read and type: the calls, and beside
each observation what your code answered, and what was expected where that is known."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from labkit.inside.alarm import shorten
from labkit.judge.difference import about, first_difference
from labkit.process.worker import PROGRAM, TRACE

MAX_LINES = 60
MAX_VALUE = 160


def text(
    scenario: str,
    args: dict[str, Any],
    seen: Any,
    expected: Any = None,
    refusals: Mapping[int, str] = {},
) -> str:
    """The last request that failed, after shrinking where the test shrinks; "" if there was none.

    Args:
        scenario, args: as `labkit.process.worker.Worker.call` got them.
        seen: what came back, or None.
        expected: what the reference answered, if it was asked the same.
        refusals: step of a program -> the error that must be raised there.
    """
    answers = list(seen) if isinstance(seen, list) else []
    right = list(expected) if isinstance(expected, list) else []
    if scenario == PROGRAM:
        lines = _program(args["steps"], answers, right, refusals)
    elif scenario == TRACE:
        lines = ["trace = " + json.dumps(args["trace"])]
        pairs = enumerate(zip(answers, right, strict=False))
        parted = (step for step, (mine, theirs) in pairs if repr(mine) != repr(theirs))
        for step in islice(parted, 1):
            lines += _beside(f"step {step}  ", answers[step], right[step : step + 1])
    elif scenario:
        name = scenario.partition(":")[2]
        lines = [f"{name}({', '.join(f'{k}={v!r}' for k, v in args.items())})"]
    else:
        return ""
    left = len(lines) - MAX_LINES
    return "\n".join(lines[:MAX_LINES] + ([f"… {left} more lines"] if left > 0 else []))


def _beside(line: str, value: Any, right: list[Any]) -> list[str]:
    """A line with what was answered behind it, and what was expected: a long value with its size
    and its beginning, and the first difference below.

    Args:
        right: the expected value, if it is known.
    """
    if not right:
        return [f"{line}# yours: {about(value)}"]
    if first := first_difference(value, right[0]):
        return [f"{line}# yours: {about(value)}", f"#   {first}"]
    if repr(value) == repr(right[0]):
        return [f"{line}# yours: {about(value)}, as expected"]
    return [f"{line}# yours: {about(value)}; expected: {about(right[0])}"]


def _program(
    steps: list[dict[str, Any]],
    answers: list[Any],
    right: list[Any] = [],  # noqa: B006 - only read
    refusals: Mapping[int, str] = {},
) -> list[str]:
    """The steps as assignments and expressions; the first thing that raised ends them."""
    lines, names = [], {step["as"]: f"v{step['as']}" for step in steps if "as" in step}
    waiting, wanted = iter(answers), iter(right)
    last = answers[-1] if answers and isinstance(answers[-1], dict) else {}
    ended, not_refused = last.get("!raises", ""), "!returned" in last
    left = len(answers) - bool(ended) - not_refused
    errors = " or ".join(dict.fromkeys(name.rpartition(":")[2] for name in refusals.values()))
    for number, step in enumerate(steps):
        if "call" in step:
            words = [_show(arg, names) for arg in step["args"]]
            words += [f"{name}={_show(arg, names)}" for name, arg in step["kwargs"].items()]
            lines.append(f"{names[step['as']]} = {_show(step['call'], names)}({', '.join(words)})")
        elif "set" in step:
            target = f"{_show(step['set'], names)}.{step['attribute']}"
            lines.append(f"{target} = {_show(step['value'], names)}")
        elif "refuse" in step:
            words = [_show(arg, names) for arg in step["args"]]
            words += [f"{name}={_show(arg, names)}" for name, arg in step["kwargs"].items()]
            error = refusals.get(number, "").rpartition(":")[2]
            refused = f"must raise {error}" if error else "must be refused"
            lines.append(f"{_show(step['refuse'], names)}({', '.join(words)})  # {refused}")
        else:
            each = step.get("each")
            shown = _show(step["see"], names)
            line = f"[item.{each} for item in {shown}]" if each else shown
            if left > 0:
                lines += _beside(f"{line}  ", next(waiting), list(islice(wanted, 1)))
                left -= 1
            else:
                lines.append(line)
    if not_refused:
        wanted_error = f"; expected {errors}" * bool(errors)
        return [*lines, f"# yours returned {about(last['!returned'])}{wanted_error}"]
    return [*lines, f"# yours raised {_error(ended)}"] if ended else lines


def _error(name: Any) -> str:
    """The name of an exception, if Python gave it: a class of the learner's may be called
    anything, and would carry to the screen whatever its name spells."""
    known = isinstance(name, str) and hasattr(builtins, name)
    return name if known else "an exception of its own"


def _show(expression: list[Any], names: dict[int, str]) -> str:
    """An expression of `labkit.inside.program`, as Python writes it."""
    kind, first = expression[0], expression[1]
    if kind == "value":
        return names[first]
    if kind == "name":
        module, _, path = str(first).partition(":")
        return path if module in ("builtins", "") else f"{module.rpartition('.')[2]}.{path}"
    if kind == "attr":
        return f"{_show(first, names)}.{expression[2]}"
    if kind == "item":
        return f"{_show(first, names)}[{_show(expression[2], names)}]"
    if kind == "dict":
        return "{" + ", ".join(f"{_show(k, names)}: {_show(v, names)}" for k, v in first) + "}"
    if kind in ("list", "tuple"):
        inner = ", ".join(_show(item, names) for item in first)
        comma = "," if kind == "tuple" and len(first) == 1 else ""
        return f"[{inner}]" if kind == "list" else f"({inner}{comma})"
    return shorten(repr(first), MAX_VALUE)
