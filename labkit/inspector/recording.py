"""A recorded run: its steps, checked, and what is known about the limits under which it ran.

A recording is a file of JSON lines, one a step, as `python -m mini_vllm ... --timeline FILE` and
`python -m labkit trace run` write it (`labkit.trace.format.STEP_FIELDS`). The engine adds two
fields that describe the run: `config` in the first line, and `added`, the prompt lengths of the
requests that have come since the line before. A replay of a trace has them in the trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from labkit.trace.format import DESCRIPTIVE_FIELDS, STEP_FIELDS
from labkit.trace.runner import Line
from mini_vllm.json_files import parse_json


class RecordingError(ValueError):
    """What was given cannot be inspected; the message names the file, the line and the fix."""


@dataclass(frozen=True)
class Run:
    """One side of an inspection.

    `config` holds those of the scheduler's limits that are known, by the names of `TraceConfig`;
    `prompt_tokens` the prompt lengths that are known. `error` is what ended a replay early.
    """

    name: str
    lines: list[Line]
    config: Mapping[str, Any] = field(default_factory=dict)
    prompt_tokens: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    notes: tuple[str, ...] = ()


def read_lines(path: Path, text: str) -> list[Line]:
    """The steps of a recording, all of them checked.

    Raises:
        RecordingError: naming file and line.
    """
    lines = []
    for number, raw in _numbered(text):
        where = f"{path}, line {number}"
        lines.append(_parse(raw, where, last=not text.endswith("\n") and raw == text[-len(raw) :]))
        check_line(lines[-1], len(lines) - 1, where)
    if not lines:
        raise RecordingError(f"{path}: there is no step in it; did the run end before its first?")
    return lines


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    return ((i, raw) for i, raw in enumerate(text.split("\n"), 1) if raw.strip())


def _parse(raw: str, where: str, last: bool) -> Any:
    try:
        return parse_json(raw)
    except json.JSONDecodeError as error:
        if last:
            raise RecordingError(
                f"{where}: the line is cut off; was the run stopped while it wrote? "
                "Record it anew, or remove the line"
            ) from None
        raise RecordingError(
            f"{where}, column {error.colno}: this is not JSON: {error.msg}"
        ) from None


_IDS, _COUNTS = "a list of ids", "an object {id: tokens}"
_KINDS = {
    "step": "a whole number", "scheduled": _COUNTS, "preempted": _IDS,
    "finished": "a list of [id, status, reason]", "aborted": _IDS,
    "new_block_ids": "an object {id: [blocks]}", "computed": _COUNTS, "running": _IDS,
    "waiting": _IDS, "free_blocks": "a whole number",
}  # fmt: skip
_OPTIONAL = dict.fromkeys(("spec", "sampled"), "an object {id: [token ids]}")
"""Fields of runs with drafts."""


def check_line(line: Any, step: int, where: str) -> None:
    """Refuse a line that is not step `step` of a recording.

    Raises:
        RecordingError: naming the key, its value, and what it must be.
    """
    if not isinstance(line, dict):
        raise RecordingError(f"{where}: a step must be an object, not {type(line).__name__}")
    for key in STEP_FIELDS:
        if key not in line:
            near = get_close_matches(key, [k for k in line if k not in STEP_FIELDS], n=1)
            meant = f"; is {near[0]!r} meant to be it?" if near else ""
            raise RecordingError(f"{where}: `{key}` is missing{meant}")
        if not _is_right(key, line[key]):
            raise RecordingError(f"{where}: {key} is {_shown(line[key])}; it must be {_KINDS[key]}")
    for key, kind in _OPTIONAL.items():
        if key in line and not _is_object_of_counts(line[key]):
            raise RecordingError(f"{where}: {key} is {_shown(line[key])}; it must be {kind}")
    for key in DESCRIPTIVE_FIELDS:
        if not isinstance(line.get(key, {}), dict):
            raise RecordingError(f"{where}: {key} is {line[key]!r}; it must be an object")
    if line["step"] != step:
        raise RecordingError(
            f"{where}: step is {line['step']}; it must be {step}: a recording begins with step 0 "
            "and leaves none out"
        )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else text[:57] + "..."


def _is_right(key: str, value: Any) -> bool:
    kind = _KINDS[key]
    if kind == "a whole number":
        return _is_count(value)
    if kind == _IDS:
        return _is_list_of(str, value)
    if kind == _COUNTS:
        return isinstance(value, dict) and all(map(_is_count, value.values()))
    if key == "new_block_ids":
        return _is_object_of_counts(value)
    return _is_list_of(list, value) and all(
        len(entry) == 3 and isinstance(entry[0], str) and isinstance(entry[1], str)
        for entry in value
    )


def _is_object_of_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(counts, list) and all(map(_is_count, counts)) for counts in value.values()
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)
