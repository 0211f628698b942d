"""A line on a terminal that says how far a command is, while it has nothing else to say.

with waiting("grade-12") as follow:
    judge(…, follow=follow)                 # grade-12: 31 of 80 tests, now 12.6 · 9 s
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

PER_SECOND = 1.0


@contextmanager
def waiting(name: str, console: Console | None = None) -> Iterator[Callable[[Path], None]]:
    """Show the line, anew each second, until the block ends; where there is no terminal, nothing.

    Yields:
        What may be told the file that `labkit.judge.pytest_report` writes, for a count of tests.
    """
    begin, reports = time.monotonic(), list[Path]()

    def line() -> Text:
        parts = [f"{name}: {far(reports[-1]) if reports else ''}".rstrip(": ")]
        return Text(" · ".join([*parts, f"{time.monotonic() - begin:.0f} s"]), style="dim")

    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield reports.append
        return
    with Live(get_renderable=line, console=console, transient=True, refresh_per_second=PER_SECOND):
        yield reports.append


def far(report: Path) -> str:
    """ "31 of 80 tests, now 12.6"; "" while none is known."""
    names: dict[str, str] = {}
    ended: set[str] = set()
    with suppress(OSError, ValueError):  # not there yet, gone already, or in the middle of a line
        for row in report.read_text(encoding="utf-8").splitlines():
            event = json.loads(row)
            if event["event"] == "collected":
                names[event["id"]] = event["name"]
            elif "outcome" in event:
                ended.add(event["id"])
    now = next((name for test, name in names.items() if test not in ended), "")
    task = ".".join(now.split("_")[1:3])
    return f"{len(ended)} of {len(names)} tests{f', now {task}' if task else ''}" if names else ""
