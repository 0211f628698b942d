"""Phase 08: how many drafts pay, by the formula of the guide."""

from __future__ import annotations

from collections.abc import Callable

from labkit.reader.drawings.canvas import BLUE, GREEN, GREY, INK, ORANGE, PALE, RED, Canvas
from mini_vllm.spec_decode.metrics import speedup

MOST, TOP_SPEED = 12, 3.5
LEFT, TOP, WIDTH, HEIGHT = 60.0, 40.0, 380.0, 220.0
CASES: list[tuple[str, str, float, float, Callable[[int], float]]] = [
    ("right 9 times in 10, c = 0.1", BLUE, 0.9, 0.1, lambda k: 1.0),
    ("right 8 in 10, c = 0.25", GREEN, 0.8, 0.25, lambda k: 1.0),
    ("right 5 in 10, c = 0.25", ORANGE, 0.5, 0.25, lambda k: 1.0),
    ("right 8 in 10, many requests: V = k + 1", RED, 0.8, 0.25, lambda k: k + 1.0),
]
"""What it is, its colour, acceptance, cost of a draft, and cost of verifying k of them."""


def pays() -> Canvas:
    """Speed-up over the number of drafts; a dot where each curve is highest."""
    canvas = Canvas(760, 320, "Speed-up over the number of drafts, for four pairs of models")

    def at(k: int, speed: float) -> tuple[float, float]:
        return LEFT + WIDTH * k / MOST, TOP + HEIGHT * (1 - speed / TOP_SPEED)

    canvas.text(LEFT, 20, "times as fast as without drafts", bold=True)
    for speed in (0.0, 1.0, 2.0, 3.0):
        ends = [at(0, speed), at(MOST, speed)]
        canvas.line(ends, colour=INK if speed in (0.0, 1.0) else PALE, dashed=speed == 1.0)
        canvas.text(LEFT - 8, ends[0][1], f"{speed:g}", anchor="end", size=12, colour=GREY)
    for k in range(MOST + 1):
        canvas.text(at(k, 0)[0], TOP + HEIGHT + 16, str(k), anchor="middle", size=12, colour=GREY)
    canvas.text(LEFT + WIDTH, TOP + HEIGHT + 38, "k, drafts a step", anchor="end", size=12)
    for number, (words, colour, acceptance, cost, verify) in enumerate(CASES):
        curve = [speedup(acceptance, k, cost, verify(k)) for k in range(MOST + 1)]
        best = max(range(MOST + 1), key=lambda k: curve[k])
        canvas.line([at(k, speed) for k, speed in enumerate(curve)], colour=colour, width=2)
        canvas.dot(*at(best, curve[best]), colour)
        y = TOP + 20 + 48 * number
        canvas.line([(470, y), (492, y)], colour=colour, width=2)
        canvas.text(500, y, words, size=12)
        told = f"best k {best}: {curve[best]:.2f}" if best else "best without drafts"
        canvas.text(500, y + 17, told, size=12, colour=GREY)
    return canvas
