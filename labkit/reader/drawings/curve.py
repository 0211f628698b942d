"""Phase 16: what a budget costs and buys, as latency over throughput."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from labkit.reader.drawings.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    Canvas,
)

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "arena" / "budget.json"
COLOURS = dict(
    zip((32, 64, 128, 256, 512, 2048), (GREY, RED, ORANGE, GREEN, BLUE, PURPLE), strict=True)
)
WIDTH, TOP, BOTTOM = 310.0, 46.0, 270.0
MOST_TOKENS = 1500
"""A second, at the right edge."""


def latency_throughput() -> Canvas:
    """Two panels: time to the first token, and time per token, over tokens a second."""
    points = json.loads(RESULTS.read_text("utf-8"))["results"]
    canvas = Canvas(800, 340, "Latency over throughput for six budgets and six loads")
    _panel(canvas, 70, points, "ttft_p99_ms", "time to first token, p99", (100, 10_000))
    _panel(canvas, 470, points, "tpot_p99_ms", "time per token, p99", (1, 300))
    x = 70.0
    for budget, colour in COLOURS.items():
        canvas.line([(x, 324), (x + 22, 324)], colour=colour, width=2)
        canvas.text(x + 28, 324, f"{budget:,}", size=12)
        x += 74
    canvas.text(x, 324, "tokens a step", size=12, colour=GREY)
    return canvas


def _panel(
    canvas: Canvas, left: float, points: list[dict[str, Any]], key: str, title: str,
    limits: tuple[float, float],
) -> None:  # fmt: skip
    def at(tokens: float, value: float) -> tuple[float, float]:
        up = math.log(value / limits[0]) / math.log(limits[1] / limits[0])
        return left + WIDTH * tokens / MOST_TOKENS, BOTTOM - up * (BOTTOM - TOP)

    canvas.text(left, 22, title, bold=True)
    canvas.line([(left, TOP), (left, BOTTOM), (left + WIDTH, BOTTOM)], colour=INK)
    tick = limits[0]
    while tick <= limits[1]:
        y = at(0, tick)[1]
        canvas.line([(left, y), (left + WIDTH, y)], colour=PALE, width=0.7)
        words = f"{tick / 1000:g} s" if tick >= 1000 else f"{tick:g} ms"
        canvas.text(left - 6, y, words, anchor="end", size=11, colour=GREY)
        tick *= 10
    for tokens in range(0, MOST_TOKENS + 1, 500):
        canvas.text(
            at(tokens, 1)[0], BOTTOM + 14, f"{tokens:,}", anchor="middle", size=11, colour=GREY
        )
    canvas.text(left + WIDTH, BOTTOM + 32, "output tokens a second", anchor="end", size=12)
    for budget, colour in COLOURS.items():
        path = [at(p["tokens_per_s"], p[key]) for p in points if p["budget"] == budget]
        canvas.line(path, colour=colour, width=1.8)
        for x, y in path:
            canvas.dot(x, y, colour, 3)
