"""The fixtures of the hidden suites, also for a plain `pytest tests/hidden/03-scheduler`."""

from __future__ import annotations

import os

from labkit.hidden import pytest_runtest_call, pytest_runtest_setup, reference, subject

__all__ = ["pytest_runtest_call", "pytest_runtest_setup", "reference", "subject"]


def pytest_report_header() -> str:
    judged = os.environ.get("LAB", "labs")
    return f"judged: {judged} (LAB=labs or LAB=reference); `make grade-NN` shows points per task"
