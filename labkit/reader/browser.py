"""The system's Chromium without a window, through Playwright: for pictures of pages, and tests."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Error, sync_playwright

from labkit.reader.pictures import VISIBLE, labelled

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic")


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
        self.problems: list[str] = []
        """Exceptions and console errors of the page since the last `open`."""
        self._playwright = sync_playwright().start()
        try:
            self._browser = self._playwright.chromium.launch(
                executable_path=program, args=list(FLAGS)
            )
        except Error as error:
            self._playwright.stop()
            raise BrowserError(f"{program} does not start: {error.message}") from None
        self.page = self._browser.new_page(reduced_motion="reduce")
        self.page.set_default_timeout(timeout * 1000)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._note)
        self._devtools = self.page.context.new_cdp_session(self.page)
        self.resize(width, height)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._browser.close()
        self._playwright.stop()

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"{message.text} {message.location.get('url', '')}")

    def resize(self, width: int, height: int) -> None:
        self.page.set_viewport_size({"width": width, "height": height})
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1.0,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """Ask pages for their "light" or "dark" colours."""
        self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")

    def open(self, url: str) -> None:
        """Load a page and wait until it is complete."""
        self.problems = []
        self.page.goto("about:blank")
        self.page.goto(url)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression.

        Raises:
            BrowserError: it raised an exception.
        """
        try:
            return self.page.evaluate(expression)
        except Error as error:
            raise BrowserError(error.message) from None

    def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript condition holds.

        Raises:
            BrowserError: it does not.
        """
        try:
            self.page.wait_for_function(f"!!({condition})")
        except Error as error:
            raise BrowserError(f"{condition}: {error.message}") from None

    def press(self, key: str) -> None:
        """Press and release one key: a character, or a named key such as Escape."""
        self.page.keyboard.press(key)

    def cpu_seconds(self) -> float:
        """Processor time that all of the browser's processes have used: unlike the time on the
        clock, it does not grow when others use the machine."""
        devtools = self._browser.new_browser_cdp_session()
        processes = devtools.send("SystemInfo.getProcessInfo")["processInfo"]
        devtools.detach()
        return float(sum(process["cpuTime"] for process in processes))

    def screenshot(self, path: Path) -> None:
        """Save what the window shows as PNG; the file carries the words in it, too."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(labelled(self.page.screenshot(), self.evaluate(VISIBLE)))

    def call(self, method: str, **parameters: Any) -> Any:
        """One command of the DevTools protocol and its answer."""
        return self._devtools.send(method, parameters)
