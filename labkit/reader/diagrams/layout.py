"""Positions for nodes and edges: layers by longest path, order by medians, then straight lines.

The classic method of Sugiyama: break cycles, give each node a layer, cut long edges by dummy nodes,
reorder layers until few edges cross, and pull nodes towards their neighbours.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from labkit.reader.diagrams.graph import Edge, Graph, Node

FONT = 13.0
LINE = 18.0
_NARROW, _WIDE = "iIlj|.,:;'!()[]{}ftr ", "mwMW@%&—"


@dataclass
class Box:
    """A node or a dummy with its size and the position of its centre."""

    name: str
    node: Node | None
    width: float
    height: float
    layer: int = 0
    x: float = 0.0
    y: float = 0.0


@dataclass
class Route:
    """An edge and the points it runs through, from source to target."""

    edge: Edge
    points: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Drawing:
    """A graph with positions; coordinates start at 0."""

    boxes: dict[str, Box]
    routes: list[Route]
    groups: list[tuple[str, list[Box]]]
    horizontal: bool
    width: float
    height: float


def text_width(text: str, size: float = FONT) -> float:
    """A close guess at the width of a line in a sans-serif face, in pixels."""
    return size * sum(
        0.34 if c in _NARROW else 0.9 if c in _WIDE else 0.7 if c.isupper() else 0.57 for c in text
    )


def _size(node: Node) -> tuple[float, float]:
    if node.shape in ("start", "end"):
        return 16.0, 16.0
    lines = node.label.split("\n")
    width = max(text_width(line) for line in lines) + 28
    height = LINE * len(lines) + 18
    if node.shape == "diamond":
        return width + 34, height + 22
    if node.shape == "circle":
        side = max(width, height)
        return side, side
    return max(width, 48.0), height


def arrange(graph: Graph) -> Drawing:
    """Positions for a whole diagram."""
    horizontal = graph.direction in ("LR", "RL")
    boxes = {}
    for name, node in graph.nodes.items():
        width, height = _size(node)
        boxes[name] = Box(name, node, *((height, width) if horizontal else (width, height)))
    flipped = _backward_edges(graph)
    _assign_layers(graph, boxes, flipped)
    chains = _chains(graph, boxes, flipped, horizontal)
    layers = _order(boxes, chains)
    _place(layers, chains, graph, horizontal)
    return _finish(graph, boxes, chains, flipped)


def _backward_edges(graph: Graph) -> set[int]:
    """Indices of edges that close a cycle; they are laid out the other way round."""
    outgoing: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for index, edge in enumerate(graph.edges):
        outgoing[edge.source].append((index, edge.target))
    state: dict[str, int] = {}
    backward: set[int] = set()

    def visit(name: str) -> None:
        state[name] = 1
        for index, target in outgoing[name]:
            if state.get(target) == 1:
                backward.add(index)
            elif target not in state:
                visit(target)
        state[name] = 2

    for name in graph.nodes:
        if name not in state:
            visit(name)
    return backward


def _ends(graph: Graph, index: int, flipped: set[int]) -> tuple[str, str]:
    edge = graph.edges[index]
    return (edge.target, edge.source) if index in flipped else (edge.source, edge.target)


def _assign_layers(graph: Graph, boxes: dict[str, Box], flipped: set[int]) -> None:
    pairs = [_ends(graph, i, flipped) for i in range(len(graph.edges))]
    pairs = [(a, b) for a, b in pairs if a != b]
    for _ in range(len(boxes)):
        moved = False
        for above, below in pairs:
            if boxes[below].layer <= boxes[above].layer:
                boxes[below].layer, moved = boxes[above].layer + 1, True
        if not moved:
            break
    for name, box in boxes.items():  # pull sources down to their first successor
        layers = [boxes[lower].layer for upper, lower in pairs if upper == name]
        if layers and all(lower != name for _, lower in pairs):
            box.layer = min(layers) - 1


def _chains(
    graph: Graph, boxes: dict[str, Box], flipped: set[int], horizontal: bool
) -> list[list[Box]]:
    """For each edge the boxes it passes, dummies for the layers between, as wide as its label."""
    chains = []
    for index, edge in enumerate(graph.edges):
        upper, lower = (boxes[name] for name in _ends(graph, index, flipped))
        chain = [upper]
        for layer in range(upper.layer + 1, lower.layer):
            name = f"edge {index} {layer}"
            breadth = 14.0 if horizontal else max(14.0, text_width(edge.label, 12))
            boxes[name] = Box(name, None, breadth, 1.0, layer)
            chain.append(boxes[name])
        chains.append([*chain, lower])
    return chains


def _neighbours(chains: list[list[Box]]) -> tuple[dict[str, list[Box]], dict[str, list[Box]]]:
    above: dict[str, list[Box]] = defaultdict(list)
    below: dict[str, list[Box]] = defaultdict(list)
    for chain in chains:
        for a, b in pairwise(chain):
            if a is not b:
                below[a.name].append(b)
                above[b.name].append(a)
    return above, below


def _order(boxes: dict[str, Box], chains: list[list[Box]]) -> list[list[Box]]:
    """Layers with their boxes in an order that crosses few edges."""
    count = max((box.layer for box in boxes.values()), default=0) + 1
    layers: list[list[Box]] = [[] for _ in range(count)]
    for box in boxes.values():
        layers[box.layer].append(box)
    above, below = _neighbours(chains)
    best, best_crossings = [list(layer) for layer in layers], _crossings(layers, below)
    for sweep in range(12):
        near = above if sweep % 2 == 0 else below
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            rank = {b.name: i for other in layers for i, b in enumerate(other)}
            keys = {
                b.name: sum(rank[n.name] for n in near[b.name]) / len(near[b.name])
                if near[b.name]
                else rank[b.name]
                for b in layer
            }
            layer.sort(key=lambda b: keys[b.name])
        crossings = _crossings(layers, below)
        if crossings < best_crossings:
            best, best_crossings = [list(layer) for layer in layers], crossings
    return best


def _crossings(layers: list[list[Box]], below: dict[str, list[Box]]) -> int:
    total = 0
    for upper, lower in pairwise(layers):
        rank = {box.name: i for i, box in enumerate(lower)}
        ends = [
            (i, rank[n.name]) for i, b in enumerate(upper) for n in below[b.name] if n.name in rank
        ]
        total += sum(a < c and b > d for a, b in ends for c, d in ends)
    return total


def _place(
    layers: list[list[Box]], chains: list[list[Box]], graph: Graph, horizontal: bool
) -> None:
    """Coordinates: layers downwards, boxes pulled towards the middle of their neighbours."""
    gap = (22.0 if horizontal else 30.0) + (34.0 if graph.groups else 0.0)
    labels = _label_room(layers, chains, graph, horizontal)
    y = 0.0
    for index, layer in enumerate(layers):
        height = max(box.height for box in layer)
        for box in layer:
            box.y = y + height / 2
        y += height + labels[index]
    for layer in layers:
        x = 0.0
        for box in layer:
            box.x = x + box.width / 2
            x += box.width + gap
    above, below = _neighbours(chains)
    for sweep in range(24):
        near = above if sweep % 2 == 0 else below
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            _pull(layer, near, gap)
    least = min(box.x - box.width / 2 for layer in layers for box in layer)
    for layer in layers:
        for box in layer:
            box.x -= least


def _label_room(
    layers: list[list[Box]], chains: list[list[Box]], graph: Graph, horizontal: bool
) -> list[float]:
    """Space below each layer: more where labels have to stand between two layers."""
    room = [44.0] * len(layers)
    ends = [{edge.source, edge.target} for edge in graph.edges]
    for edge, chain in zip(graph.edges, chains, strict=True):
        if edge.label:
            lines = edge.label.split("\n")
            width = max(text_width(line, 12) for line in lines)
            side_by_side = ends.count({edge.source, edge.target})
            need = width + 44 if horizontal else 36 + 19 * len(lines) * side_by_side
            middle = chain[(len(chain) - 1) // 2].layer
            room[middle] = max(room[middle], need)
    return room


def _pull(layer: list[Box], near: dict[str, list[Box]], gap: float) -> None:
    """Move each box towards the mean of its neighbours without overlap, order kept."""
    wanted = [
        sum(n.x for n in near[b.name]) / len(near[b.name]) if near[b.name] else b.x for b in layer
    ]
    groups: list[list[float]] = []  # [sum of offsets-corrected wishes, count, first index]
    offsets = [0.0]
    for left, right in pairwise(layer):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + gap)
    for index, wish in enumerate(wanted):
        groups.append([wish - offsets[index], 1.0, float(index)])
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
            total, count, _ = groups.pop()
            groups[-1][0] += total
            groups[-1][1] += count
    for number, (total, count, first) in enumerate(groups):
        end = int(groups[number + 1][2]) if number + 1 < len(groups) else len(layer)
        for index in range(int(first), end):
            layer[index].x = total / count + offsets[index]


def _finish(
    graph: Graph, boxes: dict[str, Box], chains: list[list[Box]], flipped: set[int]
) -> Drawing:
    """Turn the drawing to its direction and collect the routes."""
    horizontal = graph.direction in ("LR", "RL")
    width = max(b.x + b.width / 2 for b in boxes.values())
    height = max(b.y + b.height / 2 for b in boxes.values())
    for box in boxes.values():
        if graph.direction in ("BT", "RL"):
            box.y = height - box.y
        if horizontal:
            box.x, box.y, box.width, box.height = box.y, box.x, box.height, box.width
    if horizontal:
        width, height = height, width
    routes = []
    for index, (edge, chain) in enumerate(zip(graph.edges, chains, strict=True)):
        points = [(box.x, box.y) for box in chain]
        routes.append(Route(edge, points[::-1] if index in flipped else points))
    groups = [(title, [boxes[name] for name in names]) for title, names in graph.groups if names]
    real = {name: box for name, box in boxes.items() if box.node}
    return Drawing(real, routes, groups, horizontal, math.ceil(width), math.ceil(height))
