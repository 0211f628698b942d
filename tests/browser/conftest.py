"""Browser tests need Chromium. Where it is missing they are reported as not run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labkit.reader.browser import Browser, find_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if find_browser() is None:
        pytest.skip("NOT RUN: Chromium is not installed (set CHROMIUM to its path)")
    with Browser() as started:
        started.prefer("light")
        yield started


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missing = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if "tests/browser" in report.nodeid
    ]
    if missing:
        terminalreporter.write_line(f"browser: {len(missing)} tests not run", yellow=True)
