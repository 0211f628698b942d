"""A sheet to draw on, in SVG: boxes, words, lines, arrows, in colours that all eyes tell apart.

A figure stands on a light card of its own, so that it reads the same on a light and on a dark page.
Lengths are pixels; y grows downwards. The same calls give the same bytes, so a figure can be
compared with its source.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

Point = tuple[float, float]

INK, GREY, PALE, CARD = "#1f2733", "#66707d", "#d5dae1", "#fcfcfa"
# Okabe and Ito's colours, each with a pale one for areas.
BLUE, ORANGE, GREEN, RED, PURPLE = "#0072b2", "#c77700", "#007a59", "#c44200", "#9c4f86"
SOFT = {
    BLUE: "#d6e8f4",
    ORANGE: "#fbe6c4",
    GREEN: "#d0ebe1",
    RED: "#f8dccb",
    PURPLE: "#efdce9",
    GREY: "#eceff2",
}
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_MONO = "ui-monospace, 'DejaVu Sans Mono', Menlo, monospace"


class Canvas:
    """A figure in the making. `str(canvas)` is the SVG file.

    Args:
        title: what the figure shows, in words, for readers who cannot see it.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 13,
        colour: str = INK,
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        """Words whose middle line stands at `y`; "\n" begins a line of its own."""
        lines = words.split("\n")
        step = size * 1.3
        first = y - (len(lines) - 1) * step / 2
        style = f'font-size="{size:g}" fill="{colour}" text-anchor="{anchor}"'
        style += ' font-weight="600"' if bold else ""
        style += f' font-family="{_MONO}" xml:space="preserve"' if mono else ""
        for number, line in enumerate(lines):
            at = f'x="{_n(x)}" y="{_n(first + number * step)}" dominant-baseline="central"'
            self._parts.append(f"<text {at} {style}>{html.escape(line, quote=False)}</text>")

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        words: str = "",
        *,
        colour: str = GREY,
        fill: str | None = None,
        radius: float = 4,
        dashed: bool = False,
        size: float = 13,
        bold: bool = False,
        mono: bool = False,
        ink: str = INK,
    ) -> None:
        """A rectangle with words in its middle; filled with the pale twin of its colour."""
        fill = SOFT.get(colour, "none") if fill is None else fill
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" '
            f'rx="{_n(radius)}" fill="{fill}" stroke="{colour}"{dash}/>'
        )
        if words:
            middle = {"size": size, "bold": bold, "mono": mono, "colour": ink}
            self.text(x + width / 2, y + height / 2, words, anchor="middle", **middle)  # type: ignore[arg-type]

    def line(
        self,
        points: Sequence[Point],
        *,
        colour: str = GREY,
        width: float = 1.3,
        dashed: bool = False,
        arrow: bool = False,
        both: bool = False,
    ) -> None:
        """A line through points, with a head at its end (`arrow`) or at both ends (`both`)."""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" '
            f'stroke-width="{width:g}"{dash}/>'
        )
        if arrow or both:
            self._head(points[-2], points[-1], colour)
        if both:
            self._head(points[1], points[0], colour)

    def _head(self, start: Point, end: Point, colour: str) -> None:
        angle = math.atan2(end[1] - start[1], end[0] - start[0])
        sides = [
            (end[0] - 8 * math.cos(angle + turn), end[1] - 8 * math.sin(angle + turn))
            for turn in (0.4, -0.4)
        ]
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in (end, *sides))
        self._parts.append(f'<polygon points="{path}" fill="{colour}"/>')

    def dot(self, x: float, y: float, colour: str = INK, radius: float = 4) -> None:
        """A filled circle."""
        self._parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" fill="{colour}"/>')

    def __str__(self) -> str:
        size = f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}"'
        card = (
            f'<rect x="0.5" y="0.5" width="{self.width - 1:g}" height="{self.height - 1:g}" '
            f'rx="8" fill="{CARD}" stroke="{PALE}"/>'
        )
        title = f"<title>{html.escape(self.title, quote=False)}</title>"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}" role="img">'
        return "\n".join([head, title, card, *self._parts, "</svg>", ""])


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
