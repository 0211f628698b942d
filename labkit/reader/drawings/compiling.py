"""Phase 07: from a model's source to what runs; and one sum in two orders."""

from __future__ import annotations

from labkit.reader.drawings.canvas import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, RED, Canvas

STAGES = (
    (
        "Dynamo",
        "runs forward() once with\na symbolic number of tokens",
        "one graph of operations",
        PURPLE,
    ),
    ("split", "cuts at every attention", "29 pieces for 28 layers", ORANGE),
    ("passes", "fuse what they recognise", "fewer, larger operations", BLUE),
    (
        "Inductor",
        "writes a Triton kernel for\nwhat lies between products",
        "compiled pieces, cached",
        GREEN,
    ),
    ("capture", "records launches,\nsize by size", "CUDA graphs", RED),
)


def stages() -> Canvas:
    """Five stages from left to right, what each does and what comes out."""
    canvas = Canvas(860, 196, "Dynamo, split, passes, Inductor, capture")
    for number, (name, does, out, colour) in enumerate(STAGES):
        x = 16 + number * 168
        canvas.box(x, 22, 152, 34, name, colour=colour, bold=True)
        canvas.text(x + 76, 86, does, anchor="middle", size=11)
        canvas.text(x + 76, 134, out, anchor="middle", size=11, colour=GREY)
        if number:
            canvas.line([(x - 15, 39), (x - 2, 39)], colour=INK, arrow=True)
    canvas.text(
        16,
        176,
        "All of it happens once, before the first request. After it the model's Python rests.",
        size=12,
        colour=GREY,
    )
    return canvas


def orders() -> Canvas:
    """Eight products of one row, added in one go and in two halves."""
    canvas = Canvas(760, 236, "The same eight numbers summed in one order and in another")
    _chain(canvas, 24, "in a batch of 64: one program adds all", 8)
    _chain(canvas, 404, "alone: the kernel splits the sum in two", 4)
    canvas.text(
        24,
        214,
        "a + b is rounded to 24 bits, so (a + b) + c and a + (b + c) may differ in the last one",
        size=12,
        colour=GREY,
    )
    return canvas


def _chain(canvas: Canvas, left: float, title: str, length: int) -> None:
    canvas.text(left, 22, title, bold=True, size=12)
    ends = []
    for start in range(0, 8, length):
        colour = BLUE if start == 0 else ORANGE
        y = 92.0
        for number in range(start, start + length):
            x = left + number * 41
            canvas.box(x, 44, 34, 26, f"p{number}", colour=colour, size=11, mono=True)
            if number > start:
                y += 11
                canvas.line([(x - 41 + 17, y - 11), (x + 17, y)], colour=colour)
                canvas.line([(x + 17, 71), (x + 17, y)], colour=colour, arrow=True)
            else:
                canvas.line([(x + 17, 71), (x + 17, y)], colour=colour)
        ends.append((left + (start + length - 1) * 41 + 17, y))
    last = ends[-1]
    if len(ends) > 1:
        canvas.line([ends[0], (ends[0][0], 160), (last[0], 160)], colour=INK)
        canvas.line([last, (last[0], 178)], colour=INK, arrow=True)
    else:
        canvas.line([last, (last[0], 186)], colour=INK, arrow=True)
    canvas.text(last[0] - 8, 190, "sum", anchor="end", size=12)
