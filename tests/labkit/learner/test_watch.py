"""`make watch-NN`: a screen for each save, however an editor saves, until Ctrl-C."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.course.root import ROOT
from labkit.learner.commands import saves
from tests.labkit.toy_course import lab, make_course, rewrite

pytest.importorskip("watchfiles")
SECONDS = 60.0
"""For a screen, on a machine that others share."""


class Told:
    """What comes from elsewhere, line by line; each is waited for no longer than `SECONDS`."""

    def __init__(self, lines: Iterator[object]) -> None:
        self._queue: queue.Queue[object] = queue.Queue()
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: Iterator[object]) -> None:
        for line in lines:
            self._queue.put(line)

    def next(self) -> object:
        return self._queue.get(timeout=SECONDS)

    def screen(self) -> str:
        """All lines of a round."""
        found = ""
        while "(Ctrl-C ends)" not in found:
            found += str(self.next())
        return found

    def is_silent(self) -> bool:
        try:
            self._queue.get(timeout=1.5)
        except queue.Empty:
            return True
        return False


@pytest.mark.slow
def test_each_save_is_a_screen_until_ctrl_c(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    env = {k: v for k, v in os.environ.items() if k != "LAB"} | {"LABKIT_ROOT": str(tmp_path)}
    words = [sys.executable, "-m", "labkit", "watch", "0"]
    process = subprocess.Popen(
        words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        told, file = Told(iter(process.stdout.readline, "")), lab(course)
        assert "Nothing is written yet" in told.screen()
        rewrite(course, "clamp", "return min(wanted, budget, limit)")  # at once
        assert "✗ 00.1" in told.screen()
        file.write_text(file.read_text() + "\ndef (:\n")
        assert "is not Python yet" in told.screen()
        beside = file.with_name("fifo.py.new")
        beside.write_text(file.read_text().replace("def (:", "").replace("min(", "max(0, min("))
        beside.write_text(beside.read_text().replace("limit)\n", "limit))\n"))
        os.replace(beside, file)  # as editors do that never write into a file
        shown = told.screen()
        while "✓ 00.1" not in shown:  # after one for the new file alone
            shown = told.screen()
        assert "\x1b" not in shown, "this is no terminal"
        file.unlink()
        assert "fifo.py is missing" in told.screen()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    finally:
        process.kill()
        process.wait()


def test_what_is_saved_meanwhile_counts_and_a_lost_folder_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "labs"
    folder.mkdir()
    go = threading.Semaphore()

    def rounds() -> Iterator[None]:
        for _ in saves(folder):
            yield
            go.acquire(timeout=SECONDS)  # the first one passes: a round is being judged

    told = Told(rounds())
    told.next()
    assert told.is_silent()
    (folder / "a.py").write_text("1")
    told.next()
    (folder / "a.py").write_text("2")  # while that is judged
    assert told.is_silent()
    go.release()
    told.next()
    go.release()
    assert told.is_silent(), "one save, one screen"
    shutil.rmtree(folder)
    told.next()
    for _ in range(20):
        go.release()
    while not told.is_silent():  # the file, the folder
        pass
    folder.mkdir()
    told.next()
    while not told.is_silent():
        pass
    (folder / "a.py").write_text("3")
    told.next()
