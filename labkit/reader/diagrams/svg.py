"""A drawing with positions as an `<svg>` element. Colours come from the page's style sheet."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from itertools import pairwise

from labkit.reader.diagrams.graph import Edge
from labkit.reader.diagrams.layout import LINE, Box, Drawing, Route, text_width

MARGIN = 14.0
Point = tuple[float, float]


def graph_svg(drawing: Drawing) -> str:
    """The whole diagram: groups behind, then edges, boxes, and labels in front."""
    top = 26.0 if drawing.groups else 0.0
    loops = 46.0 if any(r.edge.source == r.edge.target for r in drawing.routes) else 0.0
    width = drawing.width + 2 * MARGIN + loops + 2 * top
    height = drawing.height + 2 * MARGIN + 2 * top
    shift = f'<g transform="translate({MARGIN + top:.0f} {MARGIN + top:.0f})">'
    lanes = _lanes(drawing.routes, drawing.horizontal)
    parts = [_group(title, boxes) for title, boxes in drawing.groups]
    lines, labels = [], []
    for route, lane in zip(drawing.routes, lanes, strict=True):
        line, label = _edge(route, drawing, lane)
        lines.append(line)
        labels.append(label)
    parts += lines + [_box(box) for box in drawing.boxes.values()] + labels
    return svg(width, height, shift + "".join(parts) + "</g>")


def svg(width: float, height: float, content: str) -> str:
    """The element around a diagram. It shrinks a little with its column but never grows."""
    return (
        f'<svg class="diagram" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'style="min-width:{0.8 * width:.0f}px" role="img" xmlns="http://www.w3.org/2000/svg">{content}</svg>'
    )


def text(x: float, y: float, label: str, name: str = "", anchor: str = "middle") -> str:
    """Lines of text around the height `y`."""
    lines = label.split("\n")
    first = y - (len(lines) - 1) * LINE / 2
    spans = "".join(
        f'<tspan x="{x:.1f}" y="{first + i * LINE:.1f}">{html.escape(line)}</tspan>'
        for i, line in enumerate(lines)
    )
    return f'<text class="{name}" text-anchor="{anchor}" dominant-baseline="central">{spans}</text>'


def label_plate(x: float, y: float, label: str) -> str:
    """An edge's label on a plate that covers the line behind it."""
    lines = label.split("\n")
    width = max(text_width(line, 12) for line in lines) + 10
    height = 15.0 * len(lines) + 4
    plate = (
        f'<rect class="plate" x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" '
        f'width="{width:.1f}" height="{height:.1f}" rx="3"/>'
    )
    return plate + text(x, y, label, "label").replace(f"{LINE}", "15")


def _group(title: str, boxes: list[Box]) -> str:
    left = min(b.x - b.width / 2 for b in boxes) - 12
    right = max(b.x + b.width / 2 for b in boxes) + 12
    top = min(b.y - b.height / 2 for b in boxes) - 26
    bottom = max(b.y + b.height / 2 for b in boxes) + 12
    right = max(right, left + text_width(title) + 20)
    frame = (
        f'<rect class="group" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
        f'height="{bottom - top:.1f}" rx="6"/>'
    )
    return frame + text(left + 10, top + 13, title, "group-title", "start")


def _box(box: Box) -> str:
    assert box.node is not None
    x, y, w, h = box.x - box.width / 2, box.y - box.height / 2, box.width, box.height
    shape = box.node.shape
    if shape == "start":
        return f'<circle class="start" cx="{box.x:.1f}" cy="{box.y:.1f}" r="7"/>'
    if shape == "end":
        ring = f'<circle class="node" cx="{box.x:.1f}" cy="{box.y:.1f}" r="8"/>'
        return ring + f'<circle class="start" cx="{box.x:.1f}" cy="{box.y:.1f}" r="4"/>'
    if shape == "diamond":
        points = f"{box.x},{y} {x + w},{box.y} {box.x},{y + h} {x},{box.y}"
        outline = f'<polygon class="node" points="{points}"/>'
    elif shape == "circle":
        outline = f'<ellipse class="node" cx="{box.x}" cy="{box.y}" rx="{w / 2}" ry="{h / 2}"/>'
    else:
        radius = {"round": 9.0, "pill": h / 2, "store": 14.0}.get(shape, 4.0)
        name = "node note" if shape == "note" else "node"
        outline = (
            f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" '
            f'rx="{radius:.0f}"/>'
        )
    return outline + text(box.x, box.y, box.node.label)


@dataclass(frozen=True)
class Lane:
    """How one of several edges between two boxes keeps clear of the others."""

    shift: float = 0.0
    """Pixels to the side: to the right, or down where the diagram runs from left to right."""
    label_at: float = 0.5
    """Where on the edge its label stands, from 0 to 1."""


def _lanes(routes: list[Route], horizontal: bool) -> list[Lane]:
    """Edges between the same two boxes run side by side, their labels one after the other."""
    together: dict[frozenset[str], list[int]] = {}
    for index, route in enumerate(routes):
        ends = frozenset((route.edge.source, route.edge.target))
        together.setdefault(ends, []).append(index)
    lanes = [Lane()] * len(routes)
    for indices in together.values():
        for rank, index in enumerate(indices if len(indices) > 1 else []):
            place = rank - (len(indices) - 1) / 2
            way = 1 if routes[index].edge.source == routes[indices[0]].edge.source else -1
            along = 0.0 if horizontal else way * place * 0.44 / (len(indices) - 1)
            lanes[index] = Lane(place * 22, 0.5 + along)
    return lanes


def _edge(route: Route, drawing: Drawing, lane: Lane) -> tuple[str, str]:
    edge = route.edge
    if edge.source == edge.target:
        return _loop(edge, drawing.boxes[edge.source])
    points = list(route.points)
    if lane.shift and len(points) == 2:
        dx, dy = (0.0, lane.shift) if drawing.horizontal else (lane.shift, 0.0)
        points = [(x + dx, y + dy) for x, y in points]
    start = _border(drawing.boxes[edge.source], points[0], points[1])
    end = _border(drawing.boxes[edge.target], points[-1], points[-2])
    points[0], points[-1] = start, end
    before = _bend(points) if len(points) == 3 else points[-2]
    head = _head(before, points[-1]) if edge.arrow else ""
    line = f'<path class="edge {edge.style}" d="{_curve(points)}"/>{head}'
    if not edge.label:
        return line, ""
    x, y = _middle(points, lane.label_at)
    return line, label_plate(x, y, edge.label)


def _loop(edge: Edge, box: Box) -> tuple[str, str]:
    x, y = box.x + box.width / 2, box.y
    curve = f"M{x:.1f} {y - 8:.1f} C{x + 38:.1f} {y - 26:.1f} {x + 38:.1f} {y + 26:.1f}"
    path = f'<path class="edge {edge.style}" d="{curve} {x + 2:.1f} {y + 8:.1f}"/>'
    label = ""
    if edge.label:
        label = text(x + 34, y, edge.label, "label", "start")
    return path + _head((x + 24, y + 16), (x + 1, y + 7)), label


def _border(box: Box, inside: Point, outside: Point) -> Point:
    """Where a line from a point in the box leaves its outline, by halving."""
    low, high = 0.0, 1.0
    for _ in range(24):
        middle = (low + high) / 2
        x = inside[0] + (outside[0] - inside[0]) * middle
        y = inside[1] + (outside[1] - inside[1]) * middle
        low, high = (middle, high) if _holds(box, x, y) else (low, middle)
    return (
        inside[0] + (outside[0] - inside[0]) * high,
        inside[1] + (outside[1] - inside[1]) * high,
    )


def _holds(box: Box, x: float, y: float) -> bool:
    across, down = abs(x - box.x) / (box.width / 2), abs(y - box.y) / (box.height / 2)
    shape = box.node.shape if box.node else ""
    if shape == "diamond":
        return across + down < 1
    if shape in ("circle", "start", "end"):
        return across**2 + down**2 < 1
    return across < 1 and down < 1


def _curve(points: list[Point]) -> str:
    if len(points) == 2:
        (ax, ay), (bx, by) = points
        return f"M{ax:.1f} {ay:.1f} L{bx:.1f} {by:.1f}"
    if len(points) == 3:
        points = [points[0], _bend(points), points[2]]
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for middle, after in pairwise(points[1:]):
        last = after is points[-1]
        end = after if last else ((middle[0] + after[0]) / 2, (middle[1] + after[1]) / 2)
        path += f" Q{middle[0]:.1f} {middle[1]:.1f} {end[0]:.1f} {end[1]:.1f}"
    return path


def _bend(points: list[Point]) -> Point:
    """The control point that makes a quadratic curve run through the middle one of three."""
    (ax, ay), (mx, my), (bx, by) = points
    return 2 * mx - (ax + bx) / 2, 2 * my - (ay + by) / 2


def _middle(points: list[Point], at: float) -> Point:
    """Where a label stands: on a straight line at a fraction of it, on a curve in its middle."""
    if len(points) == 2:
        (ax, ay), (bx, by) = points
        return ax + (bx - ax) * at, ay + (by - ay) * at
    half = len(points) // 2
    if len(points) == 3:
        return points[1]
    if len(points) % 2 == 0:
        (ax, ay), (bx, by) = points[half - 1 : half + 1]
        return (ax + bx) / 2, (ay + by) / 2
    (ax, ay), (mx, my), (bx, by) = points[half - 1 : half + 2]
    return ax / 4 + mx / 2 + bx / 4, ay / 4 + my / 2 + by / 4


def _head(before: Point, tip: Point) -> str:
    length = math.dist(before, tip) or 1.0
    dx, dy = (tip[0] - before[0]) / length, (tip[1] - before[1]) / length
    left = (tip[0] - 8 * dx - 4 * dy, tip[1] - 8 * dy + 4 * dx)
    right = (tip[0] - 8 * dx + 4 * dy, tip[1] - 8 * dy - 4 * dx)
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (tip, left, right))
    return f'<polygon class="head" points="{corners}"/>'
