"""Phase 10: who has what of an MLP, and which batch a stage computes."""

from __future__ import annotations

from labkit.reader.drawings.canvas import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, Canvas

COLOURS = (BLUE, ORANGE)
FEATURES = 6


def two_products() -> Canvas:
    """Rows of the first matrix, columns of the second, on two ranks; one exchange at the end."""
    canvas = Canvas(760, 300, "An MLP on two ranks: rows, then columns, then one all-reduce")
    canvas.text(20, 24, "x, on both", bold=True)
    canvas.text(150, 24, "first matrix: rows", bold=True)
    canvas.text(336, 24, "features", bold=True)
    canvas.text(450, 24, "second matrix: columns", bold=True)
    canvas.text(660, 24, "partial sums", bold=True)
    for rank, colour in enumerate(COLOURS):
        top = 50 + rank * 116
        canvas.text(20, top + 8, f"rank {rank}", colour=colour, bold=True)
        canvas.box(20, top + 22, 60, 20, "x", colour=GREY)
        canvas.line([(84, top + 32), (142, top + 32)], arrow=True)
        _matrix(canvas, 150, top, rank, rows=True)
        canvas.line([(290, top + 32), (330, top + 32)], arrow=True)
        for feature in range(FEATURES):
            here = feature // (FEATURES // 2) == rank
            shade = {"colour": colour} if here else {"colour": GREY, "fill": "none"}
            canvas.box(338 + feature * 13, top + 24, 11, 16, radius=1, **shade)  # type: ignore[arg-type]
        canvas.line([(422, top + 32), (446, top + 32)], arrow=True)
        _matrix(canvas, 452, top, rank, rows=False)
        canvas.line([(608, top + 32), (652, top + 32)], arrow=True)
        canvas.box(660, top + 22, 60, 20, f"part {rank}", colour=colour, size=12)
    canvas.line([(690, 98), (690, 182)], colour=GREEN, both=True)
    canvas.text(680, 140, "all-reduce", anchor="end", colour=GREEN, bold=True)
    canvas.text(316, 146, "nothing travels here:\neach feature is alone", size=12, colour=GREY)
    words = (
        "Afterwards both ranks have part 0 + part 1. The bias of the second product is in one part."
    )
    canvas.text(20, 274, words, colour=INK)
    return canvas


def _matrix(canvas: Canvas, x: float, y: float, rank: int, *, rows: bool) -> None:
    """A matrix whose strips run across (rows) or down; those of this rank are filled."""
    width, height, strip = 130.0, 66.0, FEATURES // 2
    for number in range(FEATURES):
        here = number // strip == rank
        shade = {"colour": COLOURS[rank]} if here else {"colour": GREY, "fill": "none"}
        if rows:
            at = (x, y + number * height / FEATURES, width, height / FEATURES - 2)
        else:
            at = (x + number * (width + 20) / FEATURES, y, (width + 20) / FEATURES - 2, height)
        canvas.box(*at, radius=1, **shade)  # type: ignore[arg-type]


def bubbles() -> Canvas:
    """Three stages and one, two, three batches on their way."""
    canvas = Canvas(760, 330, "Three stages: busy a third, two thirds, and all of the time")
    stages, ticks, cell = 3, 12, 42.0
    colours = (BLUE, ORANGE, PURPLE)
    for batches in (1, 2, 3):
        top = 20 + (batches - 1) * 104
        share = min(batches, stages) / stages
        label = f"{batches} on the way" if batches > 1 else "1 batch"
        canvas.text(20, top + 8, label, bold=True)
        filled = "filled: " if batches > 1 else ""
        canvas.text(20, top + 28, f"{filled}busy {share:.0%}", colour=GREY)
        for stage in range(stages):
            y = top + stage * 28
            canvas.text(200, y + 11, f"stage {stage}", anchor="end", size=12, colour=GREY)
            for tick in range(ticks):
                batch = (tick - stage) % stages
                busy = tick >= stage and batch < batches
                x = 212 + tick * cell
                if busy:
                    canvas.box(
                        x, y, cell - 3, 22, "ABC"[batch], colour=colours[batch], radius=2, size=12
                    )
                else:
                    canvas.box(x, y, cell - 3, 22, colour=GREY, fill="none", radius=2, dashed=True)
    return canvas
