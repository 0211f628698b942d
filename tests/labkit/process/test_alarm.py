"""The alarm interrupts what computes or sleeps too long, and nothing that a busy machine delays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from labkit.course.root import find_root

PROGRAM = """
import os, signal, subprocess, sys, threading, time
from labkit.inside import alarm
alarm.install()
alarm.WALL_FACTOR = {factor}
alarm.arm(1.0)
try:
{body}
except alarm.EndlessLoop:
    print("rang", end=" ")
alarm.arm(0)
"""
COMPUTES = "[sys.executable, '-c', 'import sys, time; end = time.monotonic() + int(sys.argv[1])\\n"
COMPUTES += "while time.monotonic() < end: pass']"
"""A child that computes for so many seconds by the clock."""
NEVER = 1000
"""For what rings, or does not, whatever the clock on the wall says."""


def start(body: str, factor: int) -> subprocess.Popen[str]:
    """A program whose alarm waits for `factor` seconds of the wall clock."""
    text = textwrap.indent(textwrap.dedent(body), "    ")
    program = PROGRAM.replace("{body}", text).replace("{factor}", str(factor))
    words = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=find_root(), stdout=pipe, stderr=pipe, text=True)


def words_of(process: subprocess.Popen[str]) -> list[str]:
    """What it has printed when it is over."""
    with process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.split()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="not run: no schedstat here")
@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(30)",
        "threading.Lock().acquire(); threading.Event().wait(30)",
        "subprocess.run(['sleep', '30'])",
    ],
    ids=["sleep", "event", "child"],
)
def test_a_wait_without_work_rings_the_alarm(body: str) -> None:
    assert words_of(start(body, NEVER)) == ["rang"]


@pytest.mark.parametrize(
    "body",
    [
        f"subprocess.run({COMPUTES} + ['2'])",
        "end = time.monotonic() + 2\n"
        "def work():\n    while time.monotonic() < end:\n        pass\n"
        "thread = threading.Thread(target=work)\nthread.start()\nthread.join()",
        "for _ in range(10):\n    time.sleep(0.04)",
    ],
    ids=["child", "thread", "short"],
)
def test_a_wait_for_work_is_limited_by_the_wall_clock(body: str) -> None:
    """Others do the work, and on a busy machine they come late."""
    assert words_of(start(body, NEVER)) == []


def test_the_patience_of_the_wall_clock_ends_too() -> None:
    assert words_of(start(f"subprocess.run({COMPUTES} + ['30'])", 2)) == ["rang"]


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="nothing can stand still here")
def test_the_time_of_a_stopped_process_does_not_count() -> None:
    """Neither as rest nor on the wall: as in a container that is paused."""
    program = start("os.kill(os.getpid(), signal.SIGSTOP)", 1)
    os.waitpid(program.pid, os.WUNTRACED)
    time.sleep(2)
    program.send_signal(signal.SIGCONT)
    assert words_of(program) == []


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
    assert words_of(start(body, NEVER))[:2] == ["spin", "<module>"]
