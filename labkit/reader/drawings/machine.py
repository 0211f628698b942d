"""Phase 00: the processes of a real deployment, and a step's time with and without overlap."""

from __future__ import annotations

import json
from pathlib import Path

from labkit.reader.drawings.canvas import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, RED, Canvas
from labkit.reader.drawings.roofline import MACHINES, QWEN3
from mini_vllm.observability.roofline import least_seconds, step_cost

SCHEDULER = Path(__file__).parents[3] / "benchmarks" / "results" / "scheduler.json"
NUM_REQUESTS, CONTEXT = 64, 128


def processes() -> Canvas:
    """Clients on the left, GPUs on the right; below each process the phases that live in it."""
    canvas = Canvas(900, 392, "API server, engine core and workers, and the queues between them")
    canvas.box(16, 120, 84, 92, "clients", colour=GREY)
    _process(canvas, 150, 196, "API server", BLUE, _API)
    _process(canvas, 414, 196, "engine core", GREEN, _CORE)
    _process(canvas, 678, 204, "a worker for each GPU", PURPLE, _WORKER)
    for x, words in ((100, "HTTP"), (346, "ZeroMQ"), (610, "shared\nmemory")):
        end = x + (50 if x == 100 else 68)
        canvas.line([(x + 3, 146), (end - 3, 146)], colour=RED, arrow=True)
        canvas.line([(end - 3, 186), (x + 3, 186)], colour=RED, arrow=True)
        canvas.text(
            (x + end) / 2,
            120 if "\n" in words else 128,
            words,
            anchor="middle",
            size=11,
            colour=RED,
        )
    canvas.text(380, 206, "tokens", anchor="middle", size=11, colour=GREY)
    canvas.text(644, 206, "tokens", anchor="middle", size=11, colour=GREY)
    canvas.text(644, 166, "plan", anchor="middle", size=11, colour=GREY)
    canvas.text(380, 166, "requests", anchor="middle", size=11, colour=GREY)
    canvas.text(
        20,
        374,
        "In brackets: the phase that builds or reads a part. Dashed: a thread or task of its own.",
        size=12,
        colour=GREY,
    )
    return canvas


_API = (
    ("HTTP, JSON, streaming  (14)", False),
    ("chat template, images  (13, 14)", False),
    ("text to tokens  (00)", False),
    ("output handler: a task", True),
    ("   tokens to text, stop strings  (06)", False),
)
_CORE = (
    ("input thread, output thread  (14)", True),
    ("the loop  (00, 01)", False),
    ("scheduler  (03, 16)", False),
    ("KV cache manager  (02)", False),
    ("grammars  (12), KV connector  (15)", False),
    ("executor  (10)", False),
)
_WORKER = (
    ("the loop of a worker  (10)", True),
    ("model runner, rows, graphs  (05, 07)", False),
    ("layers, adapters  (01, 09, 11)", False),
    ("attention, KV cache  (04)", False),
    ("sampler, drafts  (06, 08)", False),
)


def _process(
    canvas: Canvas,
    x: float,
    width: float,
    name: str,
    colour: str,
    parts: tuple[tuple[str, bool], ...],
) -> None:
    canvas.box(x, 24, width, 318, colour=colour, fill="#ffffff")
    canvas.text(x + width / 2, 46, name, anchor="middle", bold=True, colour=colour)
    for number, (words, loop) in enumerate(parts):
        y = 68 + number * 44
        canvas.box(
            x + 8, y, width - 16, 34, words, colour=colour if loop else PALE, size=11, dashed=loop
        )
    if name == "API server":
        canvas.text(x + width / 2, 300, "may be several", anchor="middle", size=11, colour=GREY)


def times() -> tuple[float, float, float]:
    """Microseconds of one step of 64 decodes: schedule, device, update.

    Host: measured, `benchmarks/results/scheduler.json`. Device: the least that an H200 needs.
    """
    results = json.loads(SCHEDULER.read_text("utf-8"))["results"]
    [host] = [r for r in results if r["engine"] == "mini_vllm" and r["requests"] == NUM_REQUESTS]
    cost = step_cost(QWEN3, [1] * NUM_REQUESTS, [CONTEXT + 1] * NUM_REQUESTS, itemsize=2)
    return host["schedule_us"], 1e6 * least_seconds(cost, MACHINES["H200"]), host["update_us"]


def overlap() -> Canvas:
    """Three steps, one at a time and one step late, on one axis of time."""
    schedule, device, update = times()
    canvas = Canvas(
        800, 336, "Three steps one after the other, and with the next one planned ahead"
    )
    scale = 0.315
    left = 96

    def bar(y: float, start: float, length: float, words: str, colour: str) -> None:
        canvas.box(
            left + start * scale, y, length * scale, 26, words, colour=colour, radius=2, size=11
        )

    for y, name in ((40, "one at a time"), (164, "one step late")):
        canvas.text(16, y - 14, name, bold=True)
        canvas.text(left - 10, y + 15, "host", anchor="end", size=12, colour=GREY)
        canvas.text(left - 10, y + 47, "device", anchor="end", size=12, colour=GREY)
    now = 0.0
    for step in range(3):
        bar(40, now, schedule, f"plan {step}", ORANGE)
        bar(72, now + schedule, device, f"run {step}", GREEN)
        bar(40, now + schedule + device, update, f"up {step}", BLUE)
        now += schedule + device + update
    canvas.text(left + now * scale, 112, f"{now:,.0f} µs", anchor="end", size=12)
    start = schedule
    bar(164, 0, schedule, "plan 0", ORANGE)
    for step in range(3):
        bar(196, start, device, f"run {step}", GREEN)
        if step < 2:
            offset = update if step else 0.0
            bar(164, start + offset, schedule, f"plan {step + 1}", ORANGE)
        bar(164, start + device, update, f"up {step}", BLUE)
        start += device
    end = start + update
    canvas.text(left + end * scale, 236, f"{end:,.0f} µs", anchor="end", size=12)
    axis = 262.0
    canvas.line([(left, axis), (left + now * scale, axis)], colour=INK)
    for tick in range(0, int(now) + 1, 500):
        x = left + tick * scale
        canvas.line([(x, axis), (x, axis + 5)], colour=INK)
        canvas.text(x, axis + 15, f"{tick:,}", anchor="middle", size=11, colour=GREY)
    words = (
        f"64 decodes. plan {schedule:.0f} µs, update {update:.0f} µs: measured, ours.\n"
        f"run {device:.0f} µs: Qwen3-0.6B's bytes at an H200's bandwidth, the least possible."
    )
    canvas.text(left, 304, words, size=12, colour=GREY)
    return canvas
