"""Chromium without a window, spoken to through a pipe: for tests of the reader and its pictures.

The DevTools protocol is JSON; over `--remote-debugging-pipe` messages end with a NUL byte. So no
driver and no library is needed, only the browser.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from labkit.reader.pictures import VISIBLE, labelled

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

LAUNCHER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class BrowserError(RuntimeError):
    """Chromium did not start, did not answer, or the page raised an exception."""


def find_browser() -> str | None:
    """Path of Chromium ($CHROMIUM, else on the PATH), or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One headless Chromium with one page; use it in a `with` statement.

    Raises:
        BrowserError: there is no Chromium, or it does not start.
    """

    def __init__(self, width: int = 1440, height: int = 900, timeout: float = 30.0) -> None:
        program = find_browser()
        if program is None:
            raise BrowserError("Chromium is not installed")
        self.timeout = timeout
        self._profile = tempfile.TemporaryDirectory(prefix="reader-", ignore_cleanup_errors=True)
        self._process = self._start([program, *FLAGS, f"--user-data-dir={self._profile.name}"])
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        self.problems: list[str] = []
        """Exceptions and console errors of the page since the last `open`."""
        self._attach(width, height)

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start the browser with its ends of two pipes as file descriptors 3 and 4."""
        child_reads, self._writer = os.pipe()
        self._reader, child_writes = os.pipe()
        # Above 9, so that neither of them is 3 or 4 already.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (child_reads, child_writes)]
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, *map(str, ends), *command],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (child_reads, child_writes, *ends):
            os.close(end)
        return process

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and remove its profile."""
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
        os.close(self._reader)
        os.close(self._writer)
        self._profile.cleanup()

    def _attach(self, width: int, height: int) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        options = {"targetId": page, "flatten": True}
        self._session = self.call("Target.attachToTarget", **options)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """Ask pages for their "light" or "dark" colours."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[feature, motion])

    def open(self, url: str) -> None:
        """Load a page and wait until it is complete."""
        self.problems = []
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression.

        Raises:
            BrowserError: it raised an exception.
        """
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(str(details.get("exception", details).get("description", details)))
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript condition holds."""
        deadline = time.monotonic() + self.timeout
        while not self.evaluate(f"!!({condition})"):
            if time.monotonic() > deadline:
                raise BrowserError(f"not true after {self.timeout} s: {condition}")
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press and release one key that types a character, or a named key such as Escape."""
        text = {"text": key} if len(key) == 1 else {}
        code = {"Escape": 27, "Enter": 13}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            extra = text if kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **extra
            )

    def cpu_seconds(self) -> float:
        """Processor time that all of the browser's processes have used: unlike the time on the
        clock, it does not grow when others use the machine."""
        processes = self.call("SystemInfo.getProcessInfo")["processInfo"]
        return float(sum(process["cpuTime"] for process in processes))

    def screenshot(self, path: Path) -> None:
        """Save what the window shows as PNG; the file carries the words in it, too."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(labelled(data, self.evaluate(VISIBLE)))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its answer; events in between are noted or dropped."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "SystemInfo.")):
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last_id:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(event["params"]["exceptionDetails"]["text"]))
        elif event.get("method") == "Log.entryAdded":
            entry = event["params"]["entry"]
            if entry["level"] == "error":
                self.problems.append(f"{entry['text']} {entry.get('url', '')}")

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + self.timeout
        while b"\0" not in self._buffer:
            wait = deadline - time.monotonic()
            if wait <= 0 or not select.select([self._reader], [], [], wait)[0]:
                raise BrowserError(f"Chromium did not answer within {self.timeout} s")
            chunk = os.read(self._reader, 1 << 20)
            if not chunk:
                raise BrowserError("Chromium ended unexpectedly")
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(raw))
