"""Runs to look into: a small one by hand, and recordings of the real scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labkit.inspector.recording import Run
from labkit.inspector.sources import of_trace
from labkit.trace.format import dump_line, parse_trace
from labkit.trace.runner import run_reference

SMALL = {
    "config": {"max_num_batched_tokens": 6, "max_num_seqs": 2, "block_size": 2,
               "num_gpu_blocks": 6, "max_model_len": 16, "scheduler_reserve_full_isl": False,
               "vocab_size": 50},
    "events": [
        {"op": "add", "id": "a", "prompt": {"len": 4, "share": 4}, "max_tokens": 5},
        {"op": "add", "id": "b", "prompt": {"len": 5, "seed": 2, "share": 2}, "max_tokens": 3},
        {"op": "add", "id": "c", "prompt": [7], "max_tokens": 9},
        {"op": "step", "n": 3}, {"op": "abort", "id": "c"}, {"op": "drain"}],
}  # fmt: skip
"""Two rows and five usable blocks: a chunked prompt, a shared block, a preemption, an abort."""


@pytest.fixture(scope="session")
def lines() -> list[dict[str, Any]]:
    """The steps of SMALL."""
    return list(run_reference(parse_trace(SMALL)))


@pytest.fixture
def run(lines: list[dict[str, Any]]) -> Run:
    """The steps of SMALL, with limits and prompt lengths."""
    return of_trace("small", lines, parse_trace(SMALL))


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SMALL))
    return path


@pytest.fixture
def recording(tmp_path: Path, lines: list[dict[str, Any]]) -> Path:
    """The steps of SMALL as `labkit trace run` prints them."""
    path = tmp_path / "small.jsonl"
    path.write_text("".join(dump_line(line) + "\n" for line in lines))
    return path
