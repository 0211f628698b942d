"""Phase 04: a grid of programs with their tiles, and one program that reads pages."""

from __future__ import annotations

from labkit.reader.drawings.canvas import (
    BLUE,
    CARD,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    Canvas,
)

SIZE, TILE, CELL = 5, 8, 36
NUMBERS = [1, 2, 3, 4, 0, 2, 2, 2, 2, 2, 0, 0, 0, 0, 7]
"""The matrix of the guide's first kernel, row by row, as it lies in memory."""
COLOURS = (BLUE, GREEN, PURPLE)


def grid_tile_mask() -> Canvas:
    """Memory in one line, and the tiles of three programs below it."""
    canvas = Canvas(790, 312, "Three programs, each with a tile of eight lanes over a row of five")
    left, top = 112, 46
    canvas.text(20, top + 17, "memory", bold=True)
    for place, number in enumerate(NUMBERS):
        x, colour = left + place * CELL, COLOURS[place // SIZE]
        canvas.box(x, top, CELL, 34, str(number), colour=colour, mono=True, radius=0)
        canvas.text(x + CELL / 2, top - 12, str(place), anchor="middle", size=11, colour=GREY)
    for row, colour in enumerate(COLOURS):
        y = top + 76 + row * 58
        canvas.text(20, y + 10, f"program {row}", bold=True, colour=colour)
        canvas.text(20, y + 26, f"row = {row}", size=12, colour=GREY, mono=True)
        for lane in range(TILE):
            _lane(
                canvas, left + (row * SIZE + lane) * CELL, y, CELL, str(lane), lane < SIZE, colour
            )
    words = (
        "One column is one address. Pale: the mask is False, the lane reads 0.0, stores nothing."
    )
    canvas.text(left, 292, words, size=12, colour=GREY)
    return canvas


def _lane(
    canvas: Canvas, x: float, y: float, width: float, words: str, on: bool, colour: str
) -> None:
    """A cell that takes part, or a pale one that is masked."""
    if on:
        canvas.box(x, y, width, 30, words, colour=colour, mono=True, size=12)
    else:
        pale = {"colour": PALE, "fill": CARD, "ink": GREY}
        canvas.box(x, y, width, 30, words, dashed=True, mono=True, size=12, **pale)  # type: ignore[arg-type]


TABLE = (7, 2, 5)
CONTEXT, BLOCK_SIZE, KEY_TILE, NUM_BLOCKS, START = 10, 4, 8, 9, 8
LEFT, STEP = 176, 66


def one_program_reads_pages() -> Canvas:
    """ana's second tile of keys: positions 8 to 15, of which 8 and 9 exist."""
    canvas = Canvas(
        740, 424, "One program of the decode kernel looks up the slots of a tile of keys"
    )
    title = "program (request ana, KV head 0), second turn of its loop: start = 8"
    canvas.text(20, 26, title, bold=True)
    canvas.text(LEFT - 14, 66, "block table of ana", anchor="end", size=12)
    for place, block in enumerate([*map(str, TABLE), "?"]):
        _lane(canvas, LEFT + place * STEP, 51, STEP - 4, block, block != "?", ORANGE)
    behind = "behind its last block: garbage"
    canvas.text(LEFT + 4 * STEP + 6, 66, behind, size=12, colour=GREY)
    for lane in range(KEY_TILE):
        _look_up(canvas, lane)
    for number, name in enumerate(("lane", "position", "position // 4", "block", "slot")):
        canvas.text(LEFT - 14, 116 + number * 34, name, anchor="end", mono=True, size=12)
    note = "visible = position < 10\nThe other six lanes load no table entry and no key."
    canvas.text(LEFT + 2 * STEP + 6, 101 + 3 * 34 + 32, note, size=12, colour=GREY)
    _cache(canvas, 330)
    return canvas


def _look_up(canvas: Canvas, lane: int) -> None:
    """One column: from the lane's number to its slot, as far as it is visible."""
    position = START + lane
    visible = position < CONTEXT
    texts = [str(lane), str(position), str(position // BLOCK_SIZE)]
    if visible:
        block = TABLE[position // BLOCK_SIZE]
        texts += [str(block), str(block * BLOCK_SIZE + position % BLOCK_SIZE)]
    for number, words in enumerate(texts):
        _lane(canvas, LEFT + lane * STEP, 101 + number * 34, STEP - 4, words, visible, BLUE)


def _cache(canvas: Canvas, y: float) -> None:
    """The cache's blocks, with the keys of ana; the two that this tile loads stand out."""
    width, left = 74, 40
    canvas.text(20, y - 20, "key cache", bold=True, size=12)
    for block in range(NUM_BLOCKS):
        x = left + block * width
        canvas.text(x + 33, y + 54, f"block {block}", anchor="middle", size=11, colour=GREY)
        first = TABLE.index(block) * BLOCK_SIZE if block in TABLE else CONTEXT
        for offset in range(BLOCK_SIZE):
            _key(canvas, x + offset * 17, y, first + offset)
    words = "Grey: keys of the first turn. Blue: of this one. Empty: no key, or another request's."
    canvas.text(left, y + 78, words, size=12, colour=GREY)


def _key(canvas: Canvas, x: float, y: float, position: int) -> None:
    if position >= CONTEXT:
        canvas.box(x, y, 16, 38, colour=PALE, fill=CARD, radius=0)
        return
    now = position >= START
    canvas.box(x, y, 16, 38, str(position), colour=BLUE if now else GREY, radius=0, size=10)
    if now:
        slot = LEFT + (position - START) * STEP + (STEP - 4) / 2
        canvas.line([(slot, 269), (x + 8, y - 3)], colour=RED, arrow=True)
