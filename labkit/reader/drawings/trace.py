"""Phase 07: three traces to recognise, drawn from one assumed step. Not measured."""

from __future__ import annotations

from labkit.reader.drawings.canvas import GREEN, GREY, INK, ORANGE, PURPLE, RED, Canvas

LAUNCH, KERNEL, GRAPH, PLAN = 5.0, 2.0, 8.0, 30.0
"""Microseconds: a launch, on the host; a small kernel; the launch of a graph; a plan."""
KERNELS = 12
TITLES = (
    "gaps between kernels: the host cannot launch fast enough",
    "gaps between steps: each step is one graph, and is planned when the last is over",
    "no gap: the next step is planned while this one runs, and the step is longer than the plan",
)
LEFT, SCALE = 96.0, 4.6


def three_traces() -> Canvas:
    """Gaps between kernels, gaps between steps, and no gap."""
    canvas = Canvas(800, 366, "Three traces: gaps between kernels, gaps between steps, none")
    step = KERNELS * KERNEL

    _rows(canvas, 44, TITLES[0])
    for kernel in range(26):
        _bar(canvas, 44, kernel * LAUNCH, LAUNCH, ORANGE)
        _bar(canvas, 74, (kernel + 1) * LAUNCH, KERNEL, GREEN)
    _wait(canvas, 74, 6 * LAUNCH + KERNEL, 7 * LAUNCH)

    _rows(
        canvas,
        148,
        "gaps between steps: each step is one graph, and is planned when the last is over",
    )
    now = 0.0
    while now < 130:
        _bar(canvas, 148, now, PLAN, PURPLE, "plan")
        _bar(canvas, 148, now + PLAN, GRAPH, ORANGE)
        _run(canvas, 178, now + PLAN + GRAPH, step)
        now += PLAN + GRAPH + step
    first = PLAN + GRAPH + step
    _wait(canvas, 178, first, first + PLAN + GRAPH)

    _rows(canvas, 252, TITLES[2])
    long = 20 * KERNEL
    _bar(canvas, 252, 0, PLAN, PURPLE, "plan")
    _bar(canvas, 252, PLAN, GRAPH, ORANGE)
    start = PLAN + GRAPH
    while start + GRAPH < 130:
        _run(canvas, 282, start, long)
        _bar(canvas, 252, start, PLAN, PURPLE, "plan")
        _bar(canvas, 252, start + PLAN, GRAPH, ORANGE)
        start += long
    keys = (("launch", ORANGE), ("plan", PURPLE), ("kernel", GREEN))
    for place, (words, colour) in enumerate(keys):
        canvas.box(LEFT + place * 100, 332, 20, 13, colour=colour, radius=2)
        canvas.text(LEFT + place * 100 + 27, 339, words, size=12)
    canvas.line([(LEFT + 300, 339), (LEFT + 324, 339)], colour=RED, both=True)
    canvas.text(LEFT + 332, 339, "the device has nothing to do", size=12)
    return canvas


def _rows(canvas: Canvas, y: float, title: str) -> None:
    canvas.text(16, y - 17, title, bold=True)
    canvas.text(LEFT - 10, y + 12, "host", anchor="end", size=12, colour=GREY)
    canvas.text(LEFT - 10, y + 42, "device", anchor="end", size=12, colour=GREY)


def _bar(
    canvas: Canvas, y: float, start: float, length: float, colour: str, words: str = ""
) -> None:
    if start + length <= 148:
        canvas.box(
            LEFT + start * SCALE, y, length * SCALE, 24, words, colour=colour, radius=1, size=11
        )


def _run(canvas: Canvas, y: float, start: float, length: float) -> None:
    for kernel in range(round(length / KERNEL)):
        _bar(canvas, y, start + kernel * KERNEL, KERNEL, GREEN)


def _wait(canvas: Canvas, y: float, start: float, end: float) -> None:
    """An arrow over time in which the device is idle."""
    x, until = LEFT + start * SCALE, LEFT + end * SCALE
    canvas.line([(x, y + 34), (until, y + 34)], colour=RED, both=end - start > 8)
    canvas.line([(x, y + 26), (x, y + 38)], colour=INK, width=0.8)
    canvas.line([(until, y + 26), (until, y + 38)], colour=INK, width=0.8)
