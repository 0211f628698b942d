"""What a hidden test asked of your code, as lines that you can read and type: the calls, and beside
each observation what your code answered. It never holds what would have been right."""

from __future__ import annotations

import builtins
import json
from typing import Any

from labkit.inside.alarm import shorten
from labkit.process.worker import PROGRAM, TRACE

MAX_LINES = 60
MAX_VALUE = 160


def text(scenario: str, args: dict[str, Any], seen: Any) -> str:
    """The last request that failed, after shrinking where the test shrinks; "" if there was none.

    Args:
        scenario, args: as `labkit.process.worker.Worker.call` got them.
        seen: what came back, or None.
    """
    if scenario == PROGRAM:
        answers = list(seen) if isinstance(seen, list) else []
        lines = _program(args["steps"], answers)
    elif scenario == TRACE:
        lines = ["trace = " + json.dumps(args["trace"])]
    elif scenario:
        name = scenario.partition(":")[2]
        lines = [f"{name}({', '.join(f'{k}={v!r}' for k, v in args.items())})"]
    else:
        return ""
    left = len(lines) - MAX_LINES
    return "\n".join(lines[:MAX_LINES] + ([f"… {left} more lines"] if left > 0 else []))


def _program(steps: list[dict[str, Any]], answers: list[Any]) -> list[str]:
    """The steps as assignments and expressions; the first thing that raised ends them."""
    lines, names = [], {step["as"]: f"v{step['as']}" for step in steps if "as" in step}
    waiting = iter(answers)
    last = answers[-1] if answers and isinstance(answers[-1], dict) else {}
    ended, not_refused = last.get("!raises", ""), "!returned" in last
    left = len(answers) - bool(ended) - not_refused
    for step in steps:
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
            lines.append(f"{_show(step['refuse'], names)}({', '.join(words)})  # is refused")
        else:
            each = step.get("each")
            shown = _show(step["see"], names)
            line = f"[item.{each} for item in {shown}]" if each else shown
            if left > 0:
                line += f"  # yours: {shorten(repr(next(waiting)), MAX_VALUE)}"
                left -= 1
            lines.append(line)
    if not_refused:
        lines.append(f"# yours returned {shorten(repr(last['!returned']), MAX_VALUE)}")
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
