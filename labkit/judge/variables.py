"""What pytest is told about a run: names of variables, known to the parent without a pytest of its
own, whose import would be half of the parent's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REPORT, SECONDS, WATCH = "LABKIT_REPORT", "LABKIT_TEST_SECONDS", "LABKIT_WATCH"
KEPT = "LABKIT_KEPT"
"""Tasks that need not run, as "03.1,03.2": their tests are left out, and not reported."""

listener: Callable[[dict[str, Any]], None] | None = None
"""Hears each record of the report at once, where pytest runs in the process that asks for it."""
