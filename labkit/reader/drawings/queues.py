"""Phase 16: V0's three queues and two pools, and the round trip of one request."""

from __future__ import annotations

from labkit.reader.drawings.canvas import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, RED, Canvas


def three_queues() -> Canvas:
    """Queues above, pools below; the numbers follow one request."""
    canvas = Canvas(760, 400, "V0: waiting, running and swapped, device blocks and host blocks")
    queues = ((40, "waiting", ORANGE), (300, "running", GREEN), (560, "swapped", PURPLE))
    for x, name, colour in queues:
        canvas.text(x + 80, 26, name, anchor="middle", bold=True, colour=colour)
        canvas.box(x, 40, 160, 74, colour=colour, fill="#ffffff")
        for place in range(3):
            canvas.box(x + 12 + place * 47, 54, 40, 46, colour=colour, dashed=place > 0)
    canvas.text(32 + 40, 77, "r", anchor="middle", bold=True)
    canvas.text(332, 77, "r", anchor="middle", bold=True)
    canvas.text(592, 77, "r", anchor="middle", bold=True)
    _arrow(canvas, [(202, 64), (297, 64)], "1", "admit", 250, 50)
    _arrow(canvas, [(462, 64), (557, 64)], "2", "swap out", 510, 50)
    _arrow(canvas, [(557, 94), (462, 94)], "3", "swap in", 510, 108)
    _arrow(
        canvas,
        [(330, 116), (330, 158), (110, 158), (110, 116)],
        "or",
        "recompute: all computed tokens are lost",
        220,
        172,
    )
    pools = (
        (200, "device blocks, while r runs", BLUE, (2, 3, 6), 9),
        (500, "host blocks, while it is out", GREY, (0, 1, 2), 6),
    )
    for x, name, colour, held, number in pools:
        canvas.text(x, 214, name, bold=True, colour=colour)
        for block in range(number):
            mine = block in held
            canvas.box(
                x + block * 27, 228, 24, 34, "r" if mine else "", colour=colour if mine else PALE,
                fill=None if mine else "#ffffff", radius=2, size=12,
            )  # fmt: skip
    canvas.line([(446, 238), (494, 238)], colour=RED, arrow=True)
    canvas.line([(494, 252), (446, 252)], colour=RED, arrow=True)
    canvas.text(470, 280, "copies over the bus", anchor="middle", size=12, colour=RED)
    lines = (
        "1  r is at the head of the line, and its prompt's blocks are free: it runs.",
        "2  The pool is empty and r is the least urgent: its 3 blocks are copied, and given away.",
        "3  Blocks are free again: r gets 3 others, its contents come back, and it goes on.",
    )
    for number, words in enumerate(lines):
        canvas.text(40, 318 + number * 24, words, size=12, colour=INK)
    return canvas


def _arrow(
    canvas: Canvas, points: list[tuple[float, float]], mark: str, words: str, x: float, y: float
) -> None:
    canvas.line(points, colour=INK, arrow=True)
    canvas.text(x, y, f"{mark}  {words}", anchor="middle", size=11)
