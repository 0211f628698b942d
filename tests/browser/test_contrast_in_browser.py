"""Every word of the pages can be read in both themes: 4.5 to 1, as WCAG asks of text."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.course.root import ROOT
from labkit.inspector.page import build_page
from labkit.inspector.sources import load
from labkit.reader.book import build_one
from labkit.reader.browser import Browser
from tests.engine.entrypoints.server import running
from tests.labkit.reading_course import make_reading_course

FAINT = """(() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => parts(color).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if ((parts(color)[3] ?? 1) > 0.9) return color;
    }
    throw new Error("no background");
  };
  const words = [...document.querySelectorAll("body *")].filter((element) =>
    element.checkVisibility({ visibilityProperty: true }) &&
    [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return words.flatMap((element) => {
    const [a, b] = [getComputedStyle(element).color, ground(element)].map(light);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const name = `${element.tagName}.${element.className}`;
    return ratio < 4.5 ? [`${name} ${ratio.toFixed(2)} ${element.textContent.trim()}`] : [];
  });
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
class TestContrast:
    def test_of_the_inspector(self, browser: Browser, tmp_path: Path, scheme: str) -> None:
        page = tmp_path / "rush.html"
        runs = load(ROOT / "docs" / "traces" / "rush.json")
        page.write_text(build_page(runs, "rush"), encoding="utf-8")
        browser.prefer(scheme)
        browser.open(page.as_uri())
        browser.evaluate("inspector.player.go(14)")  # hits, a preemption, and tokens once more
        assert browser.evaluate(FAINT) == []

    @pytest.mark.parametrize("tab", ["1", "2"])
    def test_of_the_reader(self, browser: Browser, tmp_path: Path, scheme: str, tab: str) -> None:
        course = make_reading_course(tmp_path)
        page = build_one(course, course.ready[0], None)
        browser.prefer(scheme)
        browser.open(page.as_uri())
        browser.press(tab)
        assert browser.evaluate(FAINT) == []

    def test_of_the_dashboard(self, browser: Browser, scheme: str) -> None:
        browser.prefer(scheme)
        with running() as server:
            browser.page.goto(server.url + "/dashboard")
            browser.page.wait_for_function("history.length > 0 && document.querySelector('b')")
            assert browser.evaluate(FAINT) == []
