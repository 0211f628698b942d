"""Phase 17: pairs of tokens and experts in tiles, and the same load arranged in three ways."""

from __future__ import annotations

from labkit.reader.drawings.canvas import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    Canvas,
)

IDS = [[2, 0], [2, 3], [0, 2]]
"""The guide's example: the two experts of each of three tokens, of four."""
EXPERTS, ROWS = 4, 2
COLOURS = (BLUE, PURPLE, GREEN, ORANGE)
LEFT, CELL, GAP = 150.0, 46.0, 20.0
TOKENS_TOP, PAIRS_TOP, TILES_TOP, EXPERTS_TOP = 34.0, 78.0, 164.0, 240.0


def tiles() -> Canvas:
    """Pairs above, in the tokens' order; below the tiles of one expert each."""
    import torch

    from mini_vllm.kernels.moe_layout import moe_align_block_size

    sorted_ids, expert_ids, _ = moe_align_block_size(torch.tensor(IDS), ROWS, EXPERTS)
    experts = [expert for token in IDS for expert in token]
    canvas = Canvas(760, 318, "Six pairs, sorted by expert and padded to tiles of two rows")
    for y, words in (
        (TOKENS_TOP, "tokens"),
        (PAIRS_TOP, "pairs"),
        (TILES_TOP, "sorted_ids"),
        (EXPERTS_TOP, "expert_ids"),
    ):
        canvas.text(20, y + 15, words, bold=True)
    for token in range(len(IDS)):
        x = LEFT + token * len(IDS[0]) * CELL
        canvas.box(x, TOKENS_TOP, len(IDS[0]) * CELL - 6, 28, f"t{token}")
    for pair, expert in enumerate(experts):
        x = LEFT + pair * CELL
        canvas.box(x, PAIRS_TOP, 40, 30, f"e{expert}", colour=COLOURS[expert], mono=True)
        canvas.text(x + 20, PAIRS_TOP + 40, str(pair), anchor="middle", size=11, colour=GREY)
    for place, pair in enumerate(sorted_ids.tolist()):
        x = LEFT + place * CELL + place // ROWS * GAP
        if pair == len(experts):
            canvas.box(x, TILES_TOP, 40, 30, "P", dashed=True, ink=GREY, mono=True)
            continue
        colour = COLOURS[experts[pair]]
        start = (LEFT + pair * CELL + 20, PAIRS_TOP + 48)
        canvas.line([start, (x + 20, TILES_TOP)], colour=colour)
        canvas.box(x, TILES_TOP, 40, 30, str(pair), colour=colour, mono=True)
    for tile, expert in enumerate(expert_ids.tolist()):
        x = LEFT + tile * (ROWS * CELL + GAP)
        middle, width = x + ROWS * CELL / 2 - 3, ROWS * CELL - 6
        words, colour = (f"{expert}", COLOURS[expert]) if expert >= 0 else ("-1, idle", GREY)
        canvas.line(
            [(middle, TILES_TOP + 34), (middle, EXPERTS_TOP - 4)], colour=colour, arrow=True
        )
        canvas.box(x, EXPERTS_TOP, width, 30, words, colour=colour, dashed=expert < 0, bold=True)
    canvas.line([(20, 286), (740, 286)], colour=PALE)
    words = f"P = {len(experts)}: no pair. x stays where it is: a tile reads row pair // 2 of it."
    canvas.text(20, 302, words, size=12, colour=GREY)
    return canvas


LOADS = [10, 20, 30, 90]
RANKS, COPIES = 2, 2
"""The guide's example: tokens of four experts, on two ranks."""
BAR_LEFT, SCALE, STEP = 190.0, 3.6, 104.0


def balance() -> Canvas:
    """Two ranks as they are at first, after a move, and with copies; the slower one is marked."""
    import torch

    from mini_vllm.distributed.eplb.picture import busiest_rank
    from mini_vllm.distributed.eplb.policy import rebalance_experts
    from mini_vllm.distributed.expert_parallel import at_first

    loads, number = torch.tensor([LOADS]), len(LOADS)
    arranged = [
        ("as loaded", at_first(number, number)[None]),
        ("moved", rebalance_experts(loads, number, 1, 1, RANKS)),
        ("two copies, moved", rebalance_experts(loads, number + COPIES, 1, 1, RANKS)),
    ]
    canvas = Canvas(760, 366, "The tokens of four experts on two ranks, arranged in three ways")
    average = sum(LOADS) / RANKS
    for index, (title, places) in enumerate(arranged):
        y = 26 + index * STEP
        most = busiest_rank(loads, places, RANKS)
        canvas.text(20, y, title, bold=True)
        canvas.text(20, y + 22, f"busiest: {most:.2f} x", size=12, colour=GREY)
        experts = places[0].tolist()
        for rank, own in enumerate(places[0].view(RANKS, -1).tolist()):
            x, top = BAR_LEFT, y + rank * 40 - 12
            canvas.text(x - 12, top + 15, f"rank {rank}", anchor="end", size=12)
            for expert in own:
                load = LOADS[expert] / experts.count(expert)
                colour = COLOURS[expert]
                canvas.box(x, top, load * SCALE, 30, f"{expert}: {load:g}", colour=colour, size=11)
                x += load * SCALE
    x = BAR_LEFT + average * SCALE
    canvas.line([(x, 8), (x, 318)], colour=RED, dashed=True)
    canvas.text(x + 6, 326, f"average of a rank: {average:g}", size=12, colour=RED)
    words = "expert: tokens of one copy. All ranks wait for the longest bar, in every layer."
    canvas.text(20, 350, words, size=12, colour=GREY)
    return canvas
