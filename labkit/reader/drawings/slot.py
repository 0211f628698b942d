"""Phase 14: one slot between an engine and two readers, one of whom comes seldom."""

from __future__ import annotations

from labkit.reader.drawings.canvas import BLUE, GREEN, GREY, INK, ORANGE, PALE, Canvas
from mini_vllm.engine.collector import RequestOutputCollector
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.sampling_params import RequestOutputKind

WORDS = ("Once", " upon", " a", " time", ".")
STEP, PAUSE = 5, 12
"""Milliseconds from token to token, and from one of Ben's visits to the next."""
END = 40
LEFT, SCALE = 120.0, 15.6
ENGINE, ANNA, SLOT, BEN = 62.0, 118.0, 196.0, 274.0
"""Where the rows stand."""


def one_slot() -> Canvas:
    """What the engine makes, what two readers get of it, and what waits for the second."""
    canvas = Canvas(780, 352, "One slot: Anna reads each token, Ben reads what has merged")
    for time in range(0, END + 1, 5):
        x = _x(time)
        canvas.line([(x, 44), (x, 312)], colour=PALE)
        canvas.text(x, 30, f"{time} ms", size=11, colour=GREY, anchor="middle")
    rows = ((ENGINE, "engine"), (ANNA, "Anna reads"), (SLOT, "Ben's slot"), (BEN, "Ben reads"))
    for y, words in rows:
        canvas.text(20, y + 15, words, bold=True)
    slot, since = RequestOutputCollector(RequestOutputKind.DELTA), 0
    for time in range(1, END + 1):
        number = time // STEP - 1
        if time % STEP == 0 and number < len(WORDS):
            _box(canvas, ENGINE, time, WORDS[number], GREEN)
            _box(canvas, ANNA, time, WORDS[number], BLUE)
            since = _hold(canvas, slot, since, time)
            slot.put(_said(number))
            canvas.line([(_x(time), ENGINE + 30), (_x(time), SLOT)], colour=GREY, dashed=True)
        if time % PAUSE == 0:
            since = _hold(canvas, slot, since, time)
            output = slot.get_nowait()
            if output is not None:
                canvas.line([(_x(time), SLOT + 30), (_x(time), BEN - 2)], colour=INK, arrow=True)
                _box(canvas, BEN, time, output.outputs[0].text, BLUE)
    canvas.text(
        20, 332, "Both have read the same. The slot never held more than one output.", size=12
    )
    return canvas


def _said(number: int) -> RequestOutput:
    is_last = number == len(WORDS) - 1
    parts = [CompletionOutput(0, WORDS[number], [number])]
    return RequestOutput("ben", None, [], outputs=parts, finished=is_last)


def _hold(canvas: Canvas, slot: RequestOutputCollector, since: int, now: int) -> int:
    """Draw what the slot held since it last changed; returns now."""
    if isinstance(slot.output, RequestOutput) and now > since:
        text = slot.output.outputs[0].text
        width = (now - since) * SCALE
        canvas.box(
            _x(since), SLOT, width, 30, text if width > 8 * len(text) else "…", colour=ORANGE,
            mono=True, radius=0, size=12,
        )  # fmt: skip
    return now


def _box(canvas: Canvas, y: float, time: int, words: str, colour: str) -> None:
    width = 8.0 * len(words) + 14
    canvas.box(_x(time), y, width, 30, words, colour=colour, mono=True, size=12)


def _x(time: float) -> float:
    return LEFT + time * SCALE
