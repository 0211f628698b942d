"""Find and show the first step in which two replays of one trace differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from labkit.trace.format import DESCRIPTIVE_FIELDS, STEP_FIELDS, TraceError
from labkit.trace.runner import Line
from mini_vllm.json_files import parse_json


@dataclass(frozen=True)
class Difference:
    """The first differing step: both sides, the fields that differ, and the step before it.

    A side is None if its replay had ended by then.
    """

    step: int
    fields: tuple[str, ...]
    left: Line | None
    right: Line | None
    before: Line | None


def first_difference(left: Iterable[Line], right: Iterable[Line]) -> Difference | None:
    """Compare two replays step by step; None if they are equal, the order of requests included."""
    before: Line | None = None
    for step, (a, b) in enumerate(zip_longest(left, right)):
        fields = differing_fields(a, b)
        if fields:
            return Difference(step, fields, a, b, before)
        before = a
    return None


def first_parting(yours: Sequence[Line], theirs: Sequence[Line]) -> str:
    """Where two replays part, as a sentence; "" if they do not."""
    found = first_difference(yours, theirs)
    if found is None:
        return ""
    if found.left is None or found.right is None:
        return f"{len(yours)} steps, expected {len(theirs)}"
    return f"step {found.step}: {', '.join(found.fields)} differ"


def differing_fields(left: Line | None, right: Line | None) -> tuple[str, ...]:
    """Names of the fields that differ, in the format's order."""
    if left is None or right is None:
        return () if left is right else ("step",)
    if "error" in left or "error" in right:  # a scheduler that raised has no other fields
        return () if left == right else ("error",)
    others = (left.keys() | right.keys()) - {*STEP_FIELDS, *DESCRIPTIVE_FIELDS}
    names = [*STEP_FIELDS, *sorted(others)]
    return tuple(n for n in names if _key(left.get(n)) != _key(right.get(n)))


def _key(value: Any) -> Any:
    """A value to compare by: the order of requests in `scheduled` counts, as it does in a batch."""
    return list(value.items()) if isinstance(value, dict) else value


def render(difference: Difference, left_name: str, right_name: str) -> str:
    """The difference as text: the state before it, then both sides of every differing field."""
    width = max(len(left_name), len(right_name))
    lines = [f"First difference at step {difference.step}: {', '.join(difference.fields)}"]
    if difference.before is not None:
        lines += ["", f"After step {difference.step - 1}, where both agree:"]
        state = ("running", "waiting", "computed", "free_blocks")
        lines += [f"  {n:<12} {json.dumps(difference.before.get(n))}" for n in state]
    for name in difference.fields:
        lines += ["", f"{name}:"]
        for side_name, side in ((left_name, difference.left), (right_name, difference.right)):
            value = "the replay has ended" if side is None else json.dumps(side.get(name))
            lines.append(f"  {side_name:<{width}}  {value}")
    lines += ["", f"The whole step {difference.step}:"]
    for side_name, side in ((left_name, difference.left), (right_name, difference.right)):
        lines.append(f"  {side_name:<{width}}  {json.dumps(side)}")
    return "\n".join(lines)


def load_lines(path: Path) -> list[Line]:
    """Read a file of step lines.

    Raises:
        TraceError: naming file and line, if the file is missing or a line is no JSON object.
    """
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    lines = []
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            line = parse_json(text)
        except json.JSONDecodeError as error:
            raise TraceError(f"{path}, line {number}: this is not JSON: {error.msg}") from None
        if not isinstance(line, dict):
            raise TraceError(f"{path}, line {number}: a step must be an object")
        lines.append(line)
    return lines
