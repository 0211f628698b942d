"""Pytest typed in a lab's own folder: the tests are elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        here = Path.cwd().name
        number = here[:2] if here[:2].isdigit() else "NN"
        terminalreporter.write_line(f"no tests are in labs; `make lab-{number}` judges your files")
