"""Mermaid diagrams as SVG, without a browser and without a network.

Three kinds are drawn: `flowchart` (or `graph`), `stateDiagram-v2` and `sequenceDiagram`, with the
syntax that the chapters use. `draw` returns None for anything else, and the page then shows
the diagram's text.
"""

from __future__ import annotations

from labkit.reader.diagrams import sequence
from labkit.reader.diagrams.graph import DiagramError, parse_flowchart, parse_states
from labkit.reader.diagrams.layout import arrange
from labkit.reader.diagrams.svg import graph_svg

__all__ = ["DiagramError", "draw"]


def draw(text: str) -> str | None:
    """The diagram as an `<svg>` element, or None when it is of a kind or form not drawn here."""
    lines = [line.split("%%")[0].rstrip() for line in text.splitlines()]
    lines = [line for line in lines if line.strip()]
    kind = lines[0].split()[0] if lines else ""
    try:
        if kind in ("flowchart", "graph"):
            return graph_svg(arrange(parse_flowchart(lines)))
        if kind in ("stateDiagram", "stateDiagram-v2"):
            return graph_svg(arrange(parse_states(lines)))
        if kind == "sequenceDiagram":
            return sequence.draw(lines[1:])
    except DiagramError:
        return None
    return None
