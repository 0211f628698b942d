"""Mermaid diagrams as SVG, without a browser and without a network.

Three kinds are drawn: `flowchart` (or `graph`), `stateDiagram-v2` and `sequenceDiagram`, with the
syntax that the chapters use. `draw` returns None for anything else, and the page then shows
the diagram's text.

Two libraries that need no browser were tried in December 2026, and neither does it as well. `mmdr`
0.4.0 (30 MB installed) draws all 19 diagrams of the chapters, but its colours are fixed, which a
dark page needs to change, and labels leave their frames where its font is missing. `merm` 0.1.5
cannot read arrows with two heads.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.reader.diagrams import sequence
from labkit.reader.diagrams.graph import DiagramError, Graph, parse_flowchart, parse_states
from labkit.reader.diagrams.layout import Drawing, arrange
from labkit.reader.diagrams.svg import graph_svg

__all__ = ["DiagramError", "draw"]


WIDEST = 640
"""Pixels: the width of a column of text. A wider drawing would shrink until it cannot be read."""


def _fitting(graph: Graph) -> Drawing:
    """The flowchart in its own direction, or from top to bottom if it is too wide otherwise."""
    drawing = arrange(graph)
    if drawing.horizontal and drawing.width > WIDEST:
        upright = arrange(replace(graph, direction="TD"))
        if upright.width <= WIDEST:
            return upright
    return drawing


def draw(text: str) -> str | None:
    """The diagram as an `<svg>` element, or None when it is of a kind or form not drawn here."""
    lines = [line.split("%%")[0].rstrip() for line in text.splitlines()]
    lines = [line for line in lines if line.strip()]
    kind = lines[0].split()[0] if lines else ""
    try:
        if kind in ("flowchart", "graph"):
            return graph_svg(_fitting(parse_flowchart(lines)))
        if kind in ("stateDiagram", "stateDiagram-v2"):
            return graph_svg(arrange(parse_states(lines)))
        if kind == "sequenceDiagram":
            return sequence.draw(lines[1:])
    except DiagramError:
        return None
    return None
