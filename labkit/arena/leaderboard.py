"""A file that keeps results by workload and seed.

An entry is told apart by its policy, workload, seed, number of requests and cost model, and, for a
policy from a file, by the file's contents: only entries that agree in all of the others are
comparable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labkit.arena.contest import Outcome
from labkit.arena.cost import load_model
from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm.json_files import parse_json

FILE = ROOT / "benchmarks/results/arena/leaderboard.json"
KEY = ("workload", "seed", "requests", "cost_model", "policy", "source")
Entry = dict[str, Any]


def entry(outcome: Outcome) -> Entry:
    """An outcome as plain data."""
    match = outcome.match
    return {
        "workload": match.workload,
        "seed": match.seed,
        "requests": match.requests,
        "cost_model": load_model(Path(match.cost_model)).name,
        "policy": match.policy,
        "source": source_digest(match.policy),
        "disqualified": outcome.disqualified,
        "figures": outcome.figures.to_dict() if outcome.figures else None,
    }


def source_digest(policy: str) -> str | None:
    """The first digits of the SHA-256 of a policy's file; None for the project's own."""
    path, colon, _ = policy.rpartition(":")
    if not colon:
        return None
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]


def read(path: Path) -> list[Entry]:
    """All entries; none if there is no file yet.

    Raises:
        ValueError: the file is no leaderboard.
    """
    if not path.is_file():
        return []
    try:
        entries = parse_json(path.read_bytes())
        if not all(set(KEY) <= set(item) for item in entries):
            raise ValueError(f"an entry lacks one of {', '.join(KEY)}")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is no leaderboard: {error}; move it away") from None
    return list(entries)


def add(outcomes: Iterable[Outcome], path: Path) -> int:
    """Enter outcomes, replacing older ones of the same key; returns how many entries there are."""
    table = {_key(item): item for item in read(path)}
    for outcome in outcomes:
        item = entry(outcome)
        table[_key(item)] = item
    entries = [table[key] for key in sorted(table)]
    lines = ",\n ".join(json.dumps(item) for item in entries)
    write_text(path, f"[\n {lines}\n]\n")
    return len(entries)


def _key(item: Entry) -> tuple[str, ...]:
    return tuple(str(item[name]) for name in KEY)


def ranked(entries: list[Entry]) -> list[list[Entry]]:
    """Groups of comparable entries, each from the best goodput to the worst; who was disqualified
    comes last."""
    groups: dict[tuple[Any, ...], list[Entry]] = {}
    for item in entries:
        groups.setdefault(tuple(item[name] for name in KEY[:4]), []).append(item)
    return [sorted(group, key=_rank) for _, group in sorted(groups.items())]


def _rank(item: Entry) -> tuple[float, str]:
    figures = item["figures"]
    return (-figures["goodput"] if figures else 1.0, item["policy"])
