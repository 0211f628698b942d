"""The server's live page in headless Chromium: what it reads, and that it fits a telephone."""

from __future__ import annotations

import threading

from labkit.reader.browser import Browser
from tests.engine.entrypoints.server import running

VALUES = """Object.fromEntries([...document.querySelectorAll('section')].map(
  (card) => [card.querySelector('h2').textContent, card.querySelector('b').textContent]))"""

TOUCHING = """[...document.querySelectorAll('section')].filter((card) => {
  const [value, peak] = ['b', 'i'].map((name) => card.querySelector(name).getBoundingClientRect());
  const beside = peak.top < value.bottom && peak.bottom > value.top;
  return beside && peak.left < value.right + 4 || peak.height > 1.5 * 15;
}).map((card) => card.textContent)"""
"""Cards in which a number and its peak run into each other, or the peak breaks in two."""


def test_the_page_shows_what_runs(browser: Browser) -> None:
    with running() as server:
        body = {"prompt": "Once", "max_tokens": 240, "ignore_eos": True}
        threads = [
            threading.Thread(target=server.post, args=("/v1/completions",), kwargs=body)
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for width in (1200, 390):
            browser.resize(width, 800)
            browser.page.goto(server.url + "/dashboard")
            browser.page.wait_for_function("history.length > 0 && document.querySelector('b')")
            browser.page.wait_for_function(
                "document.querySelector('#about').textContent.includes('storyteller')"
            )
            values = browser.page.evaluate(VALUES)
            assert values["Running requests"] == "0" and values["Preemptions"] == "0"
            assert len(values) == 10
            assert browser.page.evaluate("document.documentElement.scrollWidth") <= width
            browser.page.evaluate("""document.querySelectorAll('section').forEach((card) => {
              card.querySelector('b').textContent = '100.0 %';
              card.querySelector('i').textContent = 'peak 100.0 %'; })""")
            assert browser.page.evaluate(TOUCHING) == []
    browser.page.wait_for_function("document.querySelector('#about').className === 'lost'")
