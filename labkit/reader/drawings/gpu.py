"""Phase 04: who has work on a GPU, with and without splits."""

from __future__ import annotations

from labkit.reader.drawings.canvas import CARD, GREEN, GREY, ORANGE, PALE, Canvas

NUM_SMS = 132
"""Streaming multiprocessors of an H100 or H200 in its SXM form."""
KV_HEADS, CONTEXT = 8, 8192


def busy_processors() -> Canvas:
    """One decode of one request: its programs on the processors, without and with splits."""
    from mini_vllm.kernels.attention import choose_num_splits

    splits = choose_num_splits(KV_HEADS, CONTEXT, NUM_SMS)
    canvas = Canvas(760, 250, "132 processors with 8 programs, and with the programs of 32 splits")
    _grid(canvas, 24, "no splits: 8 programs", [1] * KV_HEADS)
    programs = KV_HEADS * splits
    shares = [programs // NUM_SMS + (sm < programs % NUM_SMS) for sm in range(NUM_SMS)]
    _grid(canvas, 398, f"{splits} splits: {programs} programs", shares)
    canvas.box(24, 222, 13, 13, colour=PALE, fill=CARD, radius=1)
    canvas.text(44, 229, "idle", size=12)
    canvas.box(92, 222, 13, 13, colour=ORANGE, radius=1)
    canvas.text(112, 229, "one program", size=12)
    canvas.box(212, 222, 13, 13, colour=GREEN, radius=1)
    canvas.text(232, 229, "two: one computes while the other waits for memory", size=12)
    return canvas


def _grid(canvas: Canvas, left: float, title: str, programs: list[int]) -> None:
    canvas.text(left, 26, title, bold=True)
    for sm in range(NUM_SMS):
        num = programs[sm] if sm < len(programs) else 0
        colour = (PALE, ORANGE, GREEN)[min(num, 2)]
        x, y = left + sm % 12 * 28, 44 + sm // 12 * 15.5
        canvas.box(x, y, 25, 13, colour=colour, fill=None if num else CARD, radius=1)
    canvas.text(left + 338, 26, f"{NUM_SMS} processors", anchor="end", size=11, colour=GREY)
