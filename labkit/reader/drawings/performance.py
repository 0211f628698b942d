"""Phase 19: the parts of one step of an H100, and how many requests a second a service can have."""

from __future__ import annotations

from labkit.reader.drawings.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    RED,
    Canvas,
)
from mini_vllm.observability.capacity import operational_laws, throughput_bound

STEP = {
    "floor: bytes by bandwidth": (0.40, BLUE),
    "kernels above their floor": (0.84, GREEN),
    "gaps between launches (estimate)": (0.33, GREY),
    "Python (fit)": (0.66, ORANGE),
    "not explained": (0.04, PALE),
}
"""Milliseconds of one decode step: Qwen3-0.6B, one request, an H100 (phase 07)."""
PLANS = {
    "measured": tuple(STEP),
    "device never waits": tuple(STEP)[:2],
    "kernels at their floor": (next(iter(STEP)), *tuple(STEP)[2:]),
    "both": tuple(STEP)[:1],
}
"""What is left of the step if a part of it were free."""
BUSY = {"tokenizer": 12.0, "host": 30.0, "device": 48.0}
COMPLETED, SECONDS, THINK = 600, 60.0, 2.0


def factor_of_two() -> Canvas:
    """The step as four bars: as measured, without the wait, without slow kernels, without both."""
    canvas = Canvas(800, 300, "One step of 2.27 ms, and what is left without its parts")
    left, scale, whole = 190.0, 220.0, sum(width for width, _ in STEP.values())
    for row, (name, parts) in enumerate(PLANS.items()):
        y, x = 20.0 + 44 * row, left
        canvas.text(left - 12, y + 14, name, anchor="end", size=13)
        for part in parts:
            width, colour = STEP[part]
            canvas.box(x, y, width * scale, 28, colour=colour, radius=2)
            x += width * scale
        time = sum(STEP[part][0] for part in parts)
        words = f"{time:.2f} ms" + (f", {whole / time:.2f} times as fast" if row else "")
        canvas.text(x + 10, y + 14, words, size=12, bold=not row)
    for number, (name, (time, colour)) in enumerate(STEP.items()):
        x, y = left + 290 * (number % 2), 210.0 + 24 * (number // 2)
        canvas.box(x, y, 16, 16, colour=colour, radius=2)
        canvas.text(x + 24, y + 8, f"{name}, {time:.2f}", size=12)
    return canvas


def knee() -> Canvas:
    """Requests a second at most, by how many are there at a time; and the two lines that limit."""
    canvas = Canvas(800, 330, "The most requests a second, and the knee")
    laws = operational_laws(BUSY, COMPLETED, SECONDS, THINK)
    left, right, top, bottom, most, highest = 80.0, 620.0, 24.0, 270.0, 60, 16.0

    def at(number: float, rate: float) -> tuple[float, float]:
        x = left + number / most * (right - left)
        return x, bottom - rate / highest * (bottom - top)

    canvas.line([(left, top), (left, bottom), (right, bottom)], colour=INK)
    for rate in (5, 10, 15):
        canvas.line([at(0, rate), at(most, rate)], colour=PALE, width=0.7)
        canvas.text(left - 8, at(0, rate)[1], str(rate), anchor="end", size=11, colour=GREY)
    for number in range(0, most + 1, 10):
        canvas.text(at(number, 0)[0], bottom + 14, str(number), anchor="middle", size=11)
    alone = sum(laws.demand.values()) + THINK
    edge = highest * alone
    canvas.line([at(0, 0), at(edge, highest)], colour=ORANGE, width=1.5, dashed=True)
    canvas.text(at(edge, 0)[0] + 8, top + 4, f"number / {alone:.2f} s: no request waits", size=12,
                colour=ORANGE)  # fmt: skip
    canvas.line([at(0, laws.most), at(most, laws.most)], colour=RED, width=1.5, dashed=True)
    canvas.text(right + 10, at(most, laws.most)[1] - 9, f"{laws.bottleneck} full:", size=12,
                colour=RED)  # fmt: skip
    canvas.text(right + 10, at(most, laws.most)[1] + 9, f"{laws.most:g} a second", size=12,
                colour=RED)  # fmt: skip
    bound = [at(n, throughput_bound(laws, n, THINK)) for n in range(1, most + 1)]
    canvas.line(bound, colour=BLUE, width=3)
    x, y = at(laws.knee, laws.most)
    canvas.line([(x, y), (x, bottom)], colour=GREY, width=0.8, dashed=True)
    canvas.dot(x, y, BLUE, 5)
    canvas.text(x + 8, bottom - 14, f"knee: {laws.knee:.1f}", size=12, bold=True)
    canvas.text(right, bottom + 36, "requests and clients that think, at a time", anchor="end",
                size=12)  # fmt: skip
    canvas.text(left - 40, top - 10, "requests a second", size=12)
    return canvas
