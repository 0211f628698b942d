"""Recorded replays of vLLM's own scheduler, small enough to travel with the course.

`tests/conformance/golden/PROFILE.jsonl.xz` holds one JSON line of facts about the recording, then
one line a trace. `python -m labkit conformance --record` writes the files anew.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from labkit.course.root import ROOT
from labkit.trace.diff import first_difference, render
from labkit.trace.format import Trace, parse_trace
from labkit.trace.kinds import ALL_KINDS, KINDS
from labkit.trace.runner import Line, ReferenceSubject, replay
from mini_vllm.config.profiles import PROFILES

ASYNC = "async"
"""The file of traces that are replayed with late results; they are of several kinds."""
FOLDER = ROOT / "tests" / "conformance" / "golden"


@dataclass(frozen=True)
class Golden:
    """One recorded replay: the trace, vLLM's step lines, and what it exercises (`coverage`)."""

    kind: str
    seed: int
    trace: Trace
    lines: list[Line]
    features: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.seed}"


def select(
    kind: str | Collection[str] | None = None,
    having: Collection[str] = (),
    without: Collection[str] = (),
    limit: int | None = None,
) -> list[Golden]:
    """Recorded traces, in the order of kind and seed.

    Args:
        kind: one kind, several, or None for all but those of features.
        having: keep those that show all of these features.
        without: ... and none of these.
        limit: keep the first so many.

    Raises:
        ValueError: a kind or feature is unknown.
    """
    from labkit.trace.coverage import FEATURES

    unknown = [f for f in (*having, *without) if f not in FEATURES]
    if unknown:
        raise ValueError(f"no feature {unknown[0]!r}; it must be one of {', '.join(FEATURES)}")
    kinds = [kind] if isinstance(kind, str) else list(kind or KINDS)
    found = [golden for name in kinds for golden in load(name)]
    found = [g for g in found if g.features.issuperset(having) and not g.features & set(without)]
    return found[:limit]


def mismatch(golden: Golden, name: str = "yours") -> str | None:
    """Replay on mini_vllm's scheduler and compare with what vLLM did.

    Under an overlay the learner's modules replay. What the scheduler raises is not caught.

    Returns:
        The first differing step as text (`diff.render`), or None if all steps are equal.
    """
    replayed = replay(golden.trace, ReferenceSubject(golden.trace.config))
    found = first_difference(replayed, golden.lines)
    return f"golden trace {golden.name}\n{render(found, name, 'vLLM')}" if found else None


@cache
def load(kind: str) -> tuple[Golden, ...]:
    """All recorded traces of one kind, or of several: `ASYNC`, or a profile but the pin's."""
    if kind not in (ASYNC, *list(PROFILES)[1:], *ALL_KINDS):
        raise ValueError(f"no kind {kind!r}; it must be one of {', '.join(ALL_KINDS)}")
    return tuple(_golden(kind, record) for record in _records(kind)[1:])


def facts(kind: str) -> dict[str, Any]:
    """What was recorded: upstream's version and commit, and the command."""
    return _records(kind)[0]


def _records(kind: str) -> list[dict[str, Any]]:
    text = lzma.decompress((FOLDER / f"{kind}.jsonl.xz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def _golden(kind: str, record: dict[str, Any]) -> Golden:
    kind = record.get("kind", kind)
    trace = parse_trace(record["trace"], f"golden {kind}-{record['seed']}")
    return Golden(kind, record["seed"], trace, record["lines"], frozenset(record["features"]))


def save(kind: str, header: dict[str, Any], goldens: Iterable[Golden]) -> Path:
    """Write one kind's file, whole or not at all."""
    records = [header] + [
        {
            "seed": g.seed,
            **({"kind": g.kind} if g.kind != kind else {}),
            "features": sorted(g.features),
            "trace": g.trace.to_dict(),
            "lines": g.lines,
        }
        for g in goldens
    ]
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    path = FOLDER / f"{kind}.jsonl.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    partial.replace(path)
    return path
