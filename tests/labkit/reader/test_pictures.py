"""The pictures in docs/ show the course as it is: each carries the words that stood in it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from labkit.citations.symbols import Upstream
from labkit.course.manifest import Course
from labkit.course.root import ROOT, upstream_root
from labkit.reader.book import build_all
from labkit.reader.pictures import SIGNATURE, label_of, labelled, phrases_of_page

PICTURES = ROOT / "docs" / "pictures"
COURSE = Course(ROOT)
LAST = COURSE.ready[-1].slug
PAGES = {
    "reader-light": LAST,
    "reader-dark": LAST,
    "reader-tasks": LAST,
    "book-note": "note-v1-core-sched-scheduler",
}
LONG = 25
"""Shorter phrases stand on many pages and prove little."""


def tiny_png() -> bytes:
    head = struct.pack(">I", 13) + b"IHDR" + bytes(13) + bytes(4)
    return SIGNATURE + head + struct.pack(">I", 0) + b"IEND" + bytes(4)


def test_a_picture_carries_its_words() -> None:
    assert label_of(tiny_png()) == []
    text = "One  line\n\n  and — another\n"
    assert label_of(labelled(tiny_png(), text)) == ["One line", "and — another"]
    assert phrases_of_page("<title>T</title><p>One <b>line</b></p><script>no</script>") == [
        "One",
        "line",
    ]


@cache
def book() -> Path:
    source = upstream_root(ROOT)
    if source is None:
        pytest.skip("the pictures show vLLM's source, which is not here: make upstream")
    return build_all(COURSE, Upstream(source)).parent


def label(name: str) -> list[str]:
    words = label_of((PICTURES / f"{name}.png").read_bytes())
    assert words, f"{name}.png was not taken by `python -m labkit docs pictures`"
    return words


def uncounted(phrases: list[str]) -> list[str]:
    """A citation more on a page does not make its picture old."""
    return [re.sub(r"\d+ places cited", "places cited", phrase) for phrase in phrases]


@pytest.mark.parametrize("name", PAGES)
def test_a_picture_shows_what_stands_on_its_page(name: str) -> None:
    """Else `python -m labkit docs pictures` takes it again."""
    page = set(phrases_of_page((book() / f"{PAGES[name]}.html").read_text("utf-8")))
    words = label(name)
    shown = [
        phrase
        for before, phrase in zip(["", *words], words, strict=False)
        if len(phrase) >= LONG and not phrase.endswith("›") and not before.endswith("›")
    ]  # not where a citation lies, "class A › def b", which is put together in the browser
    assert len(shown) > 20
    assert [phrase for phrase in shown if phrase not in page] == []


def test_the_picture_of_the_index_shows_the_phases_of_today() -> None:
    """Else `python -m labkit docs pictures` takes it again."""
    page = uncounted(phrases_of_page((book() / "index.html").read_text("utf-8")))
    rest: Iterator[str] = iter(page)
    missing = [phrase for phrase in uncounted(label("book-index")) if phrase not in rest]
    assert missing == [], "these stand in the picture, in this order, and not on the page"


def test_every_picture_of_the_reader_is_looked_at() -> None:
    taken = {path.stem for path in PICTURES.glob("*.png")}
    assert {name for name in taken if name.startswith(("reader", "book"))} == {*PAGES, "book-index"}
