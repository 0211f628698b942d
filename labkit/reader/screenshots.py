"""The pictures of reader and book that the docs show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from labkit.course.manifest import Course
from labkit.reader.book import OUTPUT
from labkit.reader.browser import Browser

WIDTH, HEIGHT = 1360, 850


def take(course: Course, folder: Path) -> Iterator[Path]:
    """Save the pictures below `folder`; the book must be built. Yields each path."""
    book = course.root / OUTPUT
    phase = course.ready[-1].slug
    with Browser(WIDTH, HEIGHT) as browser:
        for name, scheme in (("reader-light", "light"), ("reader-dark", "dark")):
            browser.prefer(scheme)
            browser.open((book / f"{phase}.html").as_uri() + "#deep-dive")
            for _ in range(7):
                browser.press("j")
            yield _save(browser, folder / f"{name}.png")
        browser.prefer("light")
        browser.open((book / f"{phase}.html").as_uri() + "#build")
        browser.press("2")
        browser.evaluate("document.querySelector('.tasks .open a')?.click()")
        yield _save(browser, folder / "reader-tasks.png")
        browser.open((book / "index.html").as_uri())
        yield _save(browser, folder / "book-index.png")
        browser.open((book / "note-v1-core-sched-scheduler.html").as_uri())
        browser.press("j")
        yield _save(browser, folder / "book-note.png")


def _save(browser: Browser, path: Path) -> Path:
    browser.evaluate("document.fonts.ready.then(() => new Promise(requestAnimationFrame))")
    browser.screenshot(path)
    return path
