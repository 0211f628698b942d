"""The fixtures of the hidden suites, also for a plain `pytest tests/hidden/03-scheduler`."""

from __future__ import annotations

import os

from labkit.hidden import reference, subject

__all__ = ["reference", "subject"]


def pytest_report_header() -> str:
    judged = os.environ.get("LAB", "labs")
    return f"judged: {judged} (LAB=labs or LAB=reference); `make grade-NN` shows points per task"
