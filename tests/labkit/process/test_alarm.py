"""The alarm interrupts what computes or sleeps too long, and nothing that a busy machine delays."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from labkit.course.root import find_root

PROGRAM = """
import subprocess, threading, time
from labkit.inside import alarm
alarm.install()
begin = time.monotonic()
alarm.arm(1.0)
try:
{body}
except alarm.EndlessLoop:
    print("rang", end=" ")
alarm.arm(0)
print(round(time.monotonic() - begin, 1))
"""


def run(body: str) -> tuple[bool, float]:
    """Whether it rang, and when it was over."""
    program = PROGRAM.replace("{body}", textwrap.indent(body, "    "))
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=find_root(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *rang, seconds = done.stdout.split()
    return rang == ["rang"], float(seconds)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="not run: no schedstat here")
@pytest.mark.parametrize(
    "body",
    ["time.sleep(30)", "threading.Lock().acquire(); threading.Event().wait(30)"],
    ids=["sleep", "event"],
)
def test_who_is_at_rest_waits_for_nothing_that_comes(body: str) -> None:
    rang, seconds = run(body)
    assert rang and seconds < 2.5, "4 s, if it took the wall clock alone"


@pytest.mark.parametrize(
    "body",
    [
        "subprocess.run(['sleep', '2'])",
        "end = time.monotonic() + 2\n"
        "def work():\n    while time.monotonic() < end:\n        pass\n"
        "thread = threading.Thread(target=work)\nthread.start()\nthread.join()",
        "for _ in range(20):\n    time.sleep(0.04)",
    ],
    ids=["child", "thread", "short"],
)
def test_who_waits_for_work_has_the_patience_of_the_wall_clock(body: str) -> None:
    """Others do the work, and on a busy machine they come late."""
    rang, seconds = run(body)
    assert not rang and seconds < 4.0


def test_what_an_event_loop_keeps_for_itself_is_known_all_the_same() -> None:
    """A task takes whatever is raised in it as its result, and the loop goes on."""
    body = """
    import asyncio
    async def spin():
        while True:
            pass
    async def main():
        await asyncio.wait([asyncio.ensure_future(spin())])
    asyncio.run(main())
    stood = alarm.interrupted()
    print(stood[-1][2], stood[0][2], end=" ")
    """
    program = PROGRAM.replace("{body}", textwrap.indent(textwrap.dedent(body), "    "))
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=find_root(), capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[:2] == ["spin", "<module>"], done.stderr
