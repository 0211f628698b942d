"""Which tasks can be done in a browser's tab: those whose module and tests need neither torch nor
numpy, nor threads, processes or sockets, which a tab does not have.

`here.json` is written by `python -m labkit.tab.look`, which runs the tests of every task under
these conditions with the reference.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

NAME = "labkit/course/here.json"
"""Below the checkout."""
FILE = Path(__file__).parent / "here.json"


@cache
def tasks() -> dict[str, tuple[str, ...]]:
    """Phase -> its tasks that can run in a tab: {"03-scheduler": ("03.1", …)}."""
    found: dict[str, list[str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return {slug: tuple(tasks) for slug, tasks in found.items()}


def count() -> int:
    """How many there are."""
    return sum(map(len, tasks().values()))
