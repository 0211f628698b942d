"""Phase 07: which part of a forward pass a graph holds, and who replays it."""

from __future__ import annotations

from labkit.reader.drawings.canvas import BLUE, GREEN, GREY, INK, ORANGE, Canvas

LAYERS = 28
LEFT, CELL = 132, 20.5
STEPS = (
    ("20 decodes", "full graph of 24", "4 rows are padding, with slot -1 and length 0"),
    ("20 decodes and a prompt of 100", "piecewise graphs of 120", "attention is launched between"),
    ("600 tokens", "none", "the largest is 512: one launch after another"),
)


def layers() -> Canvas:
    """A strip of layers, whole and cut at attention; below it, three steps."""
    canvas = Canvas(760, 346, "28 layers as one graph, and as 29 pieces cut at attention")
    canvas.text(20, 36, "full graph", bold=True, colour=GREEN)
    canvas.box(
        LEFT, 20, LAYERS * CELL + 14, 34, "one launch: everything, attention too", colour=GREEN
    )
    canvas.text(20, 94, "piecewise", bold=True, colour=BLUE)
    for layer in range(LAYERS + 1):
        x = LEFT + layer * CELL
        canvas.box(x, 78, 13, 34, colour=BLUE, radius=2)
        if layer < LAYERS:
            canvas.box(x + 14.5, 84, 4.5, 22, colour=ORANGE, fill=ORANGE, radius=1)
    words = f"{LAYERS + 1} graphs, {LAYERS} attention calls between them"
    canvas.text(LEFT, 130, words, size=12, colour=GREY)
    canvas.box(548, 123, 13, 14, colour=BLUE, radius=2)
    canvas.text(568, 130, "norms, projections, MLP", size=12, colour=GREY)
    canvas.box(438, 123, 5, 14, colour=ORANGE, fill=ORANGE, radius=1)
    canvas.text(452, 130, "attention", size=12, colour=GREY)
    canvas.text(20, 176, "no graph", bold=True, colour=GREY)
    for launch in range(LAYERS * 4):
        canvas.line([(LEFT + launch * CELL / 4, 164), (LEFT + launch * CELL / 4, 188)], colour=GREY)
    canvas.text(LEFT, 204, "hundreds of launches", size=12, colour=GREY)
    canvas.line([(20, 226), (740, 226)], colour="#d5dae1")
    for number, (step, graph, why) in enumerate(STEPS):
        y = 248 + number * 32
        colour = (GREEN, BLUE, GREY)[number]
        canvas.text(20, y, step, size=12)
        canvas.box(226, y - 13, 168, 26, graph, colour=colour, size=12)
        canvas.text(408, y, why, size=12, colour=INK)
    return canvas
