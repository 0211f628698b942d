"""Two figures about KV that travels: when a trip is worth it, and when a fleet should be split."""

from __future__ import annotations

import json
import math

from labkit.course.root import ROOT
from labkit.reader.drawings.canvas import BLUE, GREEN, GREY, INK, ORANGE, PALE, Canvas
from mini_vllm.kv_transfer.economics import (
    LINKS,
    SHAPES,
    break_even_tokens,
    kv_bytes_per_token,
    load_seconds,
)

SPLIT = ROOT / "benchmarks" / "results" / "arena" / "split.json"
LEFT, TOP, WIDTH, HEIGHT = 80.0, 40.0, 560.0, 220.0
PREFILL_RATE, FIXED = 20_000, 0.01
MOST_TOKENS, MOST_SECONDS = 1_000, 0.12


def break_even() -> Canvas:
    """Seconds to compute a prompt of Llama-3.1-8B, and to carry its KV over three links."""
    canvas = Canvas(760, 320, "Computing a prompt's KV, and carrying it over three links")
    canvas.text(LEFT, 22, "seconds for the KV of a prompt, Llama-3.1-8B", bold=True)
    _frame(canvas, [(s, f"{s:g} s") for s in (0.03, 0.06, 0.09, 0.12)], MOST_SECONDS)
    for tokens in (0, 200, 400, 600, 800, 1000):
        x = LEFT + WIDTH * tokens / MOST_TOKENS
        canvas.text(x, TOP + HEIGHT + 16, f"{tokens:,}", anchor="middle", size=11, colour=GREY)
    canvas.text(LEFT + WIDTH, TOP + HEIGHT + 36, "tokens", anchor="end", size=12)
    size = kv_bytes_per_token(SHAPES["Llama-3.1-8B"])
    lines = [("computed", INK, 0.0, MOST_TOKENS / PREFILL_RATE)]
    for name, colour in (("10 GbE", ORANGE), ("100 GbE", BLUE), ("PCIe 5 x16", GREEN)):
        seconds = load_seconds(MOST_TOKENS, size, LINKS[name], FIXED)
        lines.append((name, colour, FIXED, seconds))
    for name, colour, start, end in lines:
        ends = [_at(0, start / MOST_SECONDS), _at(1, end / MOST_SECONDS)]
        canvas.line(ends, colour=colour, width=2)
        canvas.text(LEFT + WIDTH + 8, ends[1][1], name, size=12, colour=colour)
    for name, colour, side in (("PCIe 5 x16", GREEN, "end"), ("100 GbE", BLUE, "start")):
        pays_from = break_even_tokens(size, LINKS[name], PREFILL_RATE, FIXED)
        x, y = _at(pays_from / MOST_TOKENS, pays_from / PREFILL_RATE / MOST_SECONDS)
        canvas.line([(x, y), (x, TOP + HEIGHT)], colour=colour, dashed=True)
        canvas.dot(x, y, colour, 3)
        words, shift = f"from {math.ceil(pays_from)}", 4 if side == "start" else 2
        canvas.text(x + shift, y - 14, words, anchor=side, size=11, colour=colour)
    return canvas


def split_or_not() -> Canvas:
    """Share of requests in time, over the promised time per token."""
    rows = json.loads(SPLIT.read_text("utf-8"))["results"]
    canvas = Canvas(760, 320, "Eight replicas, and a split fleet, under ever shorter promises")
    canvas.text(LEFT, 22, "requests in time, trace documents", bold=True)
    _frame(canvas, [(s, f"{100 * (0.7 + 0.3 * s):.0f} %") for s in (0.0, 1 / 3, 2 / 3, 1.0)], 1.0)
    first, last = rows[0]["tpot"], rows[-1]["tpot"]
    for row in rows:
        x = LEFT + WIDTH * (row["tpot"] - first) / (last - first)
        words = f"{1e3 * row['tpot']:g}"
        canvas.text(x, TOP + HEIGHT + 16, words, anchor="middle", size=11, colour=GREY)
    canvas.text(LEFT + WIDTH, TOP + HEIGHT + 36, "promised ms per token", anchor="end", size=12)
    for key, colour, words, down in (
        ("replicas", ORANGE, "8 replicas", 8),
        ("split", BLUE, "3 + 5", -8),
    ):
        path = [_at((row["tpot"] - first) / (last - first), (row[key] - 0.7) / 0.3) for row in rows]
        canvas.line(path, colour=colour, width=2)
        for x, y in path:
            canvas.dot(x, y, colour, 3)
        canvas.text(path[-1][0] + 10, path[-1][1] + down, words, size=12, colour=colour)
    return canvas


def _at(across: float, up: float) -> tuple[float, float]:
    return LEFT + WIDTH * across, TOP + HEIGHT * (1 - up)


def _frame(canvas: Canvas, ticks: list[tuple[float, str]], most: float) -> None:
    canvas.line([_at(0, 1), _at(0, 0), _at(1, 0)], colour=INK)
    for value, words in ticks:
        y = _at(0, value / most)[1]
        canvas.line([(LEFT, y), (LEFT + WIDTH, y)], colour=PALE, width=0.7)
        canvas.text(LEFT - 6, y, words, anchor="end", size=11, colour=GREY)
