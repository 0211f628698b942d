"""Phase 11: the rows of a step, the list that sorts them by slot, and the slots."""

from __future__ import annotations

from labkit.reader.drawings.canvas import BLUE, GREEN, GREY, PALE, Canvas

ROWS = [0, 0, -1, 1, 1, 1, -1, 0]
"""The guide's example: the slot of each row of the step, -1 for the base."""
COLOURS = {0: BLUE, 1: GREEN, -1: GREY}
NAMES = {0: "pirate", 1: "json", -1: "base"}
LEFT, CELL, GAP = 170.0, 58.0, 26.0
ROWS_TOP, LIST_TOP, SLOTS_TOP = 46.0, 146.0, 250.0


def segments() -> Canvas:
    """Nothing moves but numbers: a list sorts the rows, a segment of it reads one slot."""
    import numpy as np
    import torch

    from mini_vllm.lora.mapping import LoRAKernelMeta

    meta = LoRAKernelMeta(2, len(ROWS), torch.device("cpu"))
    meta.prepare_tensors(np.array(ROWS, dtype=np.int32))
    order = meta.token_indices_sorted_by_lora_ids.tolist()
    starts = meta.lora_token_start_loc.tolist()
    sizes = meta.num_tokens_per_lora.tolist()
    canvas = Canvas(760, 326, "Eight rows of a step, sorted by slot in a list of their numbers")
    for y, words in ((ROWS_TOP, "rows of x"), (LIST_TOP, "sorted numbers"), (SLOTS_TOP, "slots")):
        canvas.text(20, y + 15, words, bold=True)
    for row, slot in enumerate(ROWS):
        x = LEFT + row * CELL
        canvas.text(x + 23, ROWS_TOP - 14, str(row), anchor="middle", size=11, colour=GREY)
        words = NAMES[slot]
        canvas.box(x, ROWS_TOP, 46, 30, words, colour=COLOURS[slot], size=11)
    for number, slot in enumerate(meta.active_lora_ids.tolist()):
        members = order[starts[number] : starts[number] + sizes[number]]
        left = LEFT + starts[number] * CELL + number * GAP - GAP
        for place, row in enumerate(members):
            x = left + place * CELL
            canvas.line(
                [(LEFT + row * CELL + 23, ROWS_TOP + 30), (x + 23, LIST_TOP)], colour=COLOURS[slot]
            )
            canvas.box(x, LIST_TOP, 46, 30, str(row), colour=COLOURS[slot], mono=True)
        middle = left + (len(members) * CELL - 12) / 2
        if slot < 0:
            canvas.text(middle, LIST_TOP + 50, "-1: no work", anchor="middle", size=12, colour=GREY)
            continue
        canvas.line(
            [(middle, LIST_TOP + 34), (middle, SLOTS_TOP - 4)], colour=COLOURS[slot], arrow=True
        )
        width = len(members) * CELL - 12
        canvas.box(
            left, SLOTS_TOP, width, 34, f"slot {slot}: A, B", colour=COLOURS[slot], bold=True
        )
    canvas.line([(20, 296), (740, 296)], colour=PALE)
    words = "x and y stay where they are. A program reads its rows through the list, and one slot."
    canvas.text(20, 310, words, size=12, colour=GREY)
    return canvas
