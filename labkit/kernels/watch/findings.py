"""One thing that is wrong with a kernel, in words for the person who wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

KINDS = {
    "todo": "not written yet",
    "lint": "not a kernel that Triton could compile, or not only a kernel",
    "compile": "the compiler rejects it, or it needs more than the GPU has",
    "oob": "reads or writes outside of a tensor",
    "stale_read": "reads an element that holds nothing of this problem",
    "uninitialised": "reads an output before any kernel has written it",
    "undefined_lane": "uses what a masked load without `other` left undefined",
    "race": "two programs, or two lanes of one, meet at one element, and one of them writes",
    "duplicate_store": "two lanes write different values to one element",
    "coverage": "leaves an output element unwritten",
    "overflow": "a 32-bit integer wraps around",
    "input_changed": "writes to what it may only read",
    "values": "wrong numbers",
    "traffic": "moves more bytes than it needs to",
    "flops": "computes more than it needs to",
    "crash": "raises an error, or ends its process",
    "timeout": "does not end in time",
    "broken": "the checker itself does not work",
}


@dataclass(frozen=True)
class Finding:
    """What was found, where, and how often.

    Attributes:
        kind: a key of `KINDS`.
        message: one or two sentences that name the values.
        kernel: the kernel that was launched.
        line: in the learner's file; None if no single line is to blame.
        program: the first program that did it, as its three `program_id`s.
        tensor, element: the problem's name for the tensor, and the index in it.
        count: how many elements, over all programs, share kind, kernel, line and tensor.
    """

    kind: str
    message: str
    kernel: str
    line: int | None = None
    program: tuple[int, int, int] | None = None
    tensor: str | None = None
    element: tuple[int, ...] | None = None
    count: int = 1

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Finding:
        """The finding that `plain` wrote.

        Raises:
            ValueError: an unknown kind.
        """
        if data["kind"] not in KINDS:
            raise ValueError(f"unknown kind of finding {data['kind']!r}; known: {', '.join(KINDS)}")
        tuples = {key: data[key] and tuple(data[key]) for key in ("program", "element")}
        return cls(**{**data, **tuples})


class Findings:
    """Collects findings; those alike become one with a count, worded as the first."""

    def __init__(self) -> None:
        self._first: dict[tuple[Any, ...], Finding] = {}

    def add(self, finding: Finding) -> None:
        key = (finding.kind, finding.kernel, finding.line, finding.tensor)
        known = self._first.get(key)
        if known is not None:
            finding = replace(known, count=known.count + finding.count)
        self._first[key] = finding

    def __len__(self) -> int:
        return len(self._first)

    def __iter__(self) -> Any:
        return iter(self._first.values())
