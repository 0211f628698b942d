"""What a picture of a page said, kept inside the picture: so that a test can tell when it is old.

A PNG file may carry text beside its pixels. `labelled` puts the words that stood in the window into
such a chunk, and `label_of` reads them again.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser

SIGNATURE = b"\x89PNG\r\n\x1a\n"
KEYWORD = b"Visible text"
VISIBLE = """
(() => {
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), words = [];
  while (nodes.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(nodes.currentNode);
    const box = range.getBoundingClientRect();
    const inside = box.bottom > 0 && box.top < innerHeight && box.left < innerWidth;
    if (box.width && box.height && inside && box.right > 0) words.push(nodes.currentNode.data);
  }
  return words.join("\\n");
})()
"""
"""Gives the texts that lie in the window, in the order of the page."""


def labelled(png: bytes, text: str) -> bytes:
    """The same picture, carrying `text` in a compressed text chunk before its end."""
    body = KEYWORD + b"\0\0" + zlib.compress("\n".join(phrases(text)).encode("utf-8"))
    end = png.rindex(b"IEND") - 4
    return png[:end] + _chunk(b"zTXt", body) + png[end:]


def label_of(png: bytes) -> list[str]:
    """The phrases that a picture carries; [] if it carries none."""
    for kind, body in _chunks(png):
        if kind == b"zTXt" and body.startswith(KEYWORD):
            return zlib.decompress(body[len(KEYWORD) + 2 :]).decode("utf-8").split("\n")
    return []


def _chunk(kind: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(SIGNATURE)
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        yield png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        place += 12 + length


def phrases(text: str) -> list[str]:
    """The lines of a text that say something, with single spaces."""
    return [line for raw in text.splitlines() if (line := " ".join(raw.split()))]


def phrases_of_page(page: str) -> list[str]:
    """The texts of an HTML page in their order, without scripts and styles."""
    reader = _Texts()
    reader.feed(page)
    return phrases("\n".join(reader.found))


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in ("script", "style", "title")

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("script", "style", "title")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.found.append(data)
