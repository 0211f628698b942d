"""Phase 00: the gap between tokens that are known and tokens that are computed, step by step."""

from __future__ import annotations

from labkit.reader.drawings.canvas import BLUE, CARD, GREY, INK, ORANGE, PALE, SOFT, Canvas
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

WORDS = "Once upon a time there was a small fox who lived in a house by".split()
"""Each is a token of the bundled model; the last five are its own."""
NUM_OUTPUT = 5
LEFT, TOP, WIDTH, HEIGHT = 86.0, 42.0, 37.0, 25.0


def the_gap() -> Canvas:
    """One row a step: what was computed before, what is computed now, what waits."""
    rows = play()
    canvas = Canvas(760, TOP + len(rows) * 31 + 44, "Tokens of one request, step by step")
    for place, word in enumerate(WORDS):
        canvas.text(_x(place) + 17, 26, word, anchor="middle", size=11, colour=GREY)
    canvas.text(20, 26, "step", size=12, colour=GREY)
    for step, (start, end, known) in enumerate(rows):
        y = TOP + step * 31
        canvas.text(26, y + 12, str(step), bold=True)
        for place in range(known):
            if place < start:
                canvas.box(_x(place), y, 34, HEIGHT, colour=GREY, fill=SOFT[GREY], radius=2)
            elif place < end:
                canvas.box(_x(place), y, 34, HEIGHT, colour=BLUE, radius=2)
            else:
                canvas.box(_x(place), y, 34, HEIGHT, colour=PALE, fill=CARD, radius=2)
        if known > rows[step - 1][2]:
            canvas.box(_x(known - 1), y, 34, HEIGHT, colour=ORANGE, radius=2, dashed=True)
        gap = known - end
        canvas.text(_x(len(WORDS)) + 10, y + 12, f"gap {gap}", size=12, colour=INK)
    y = TOP + len(rows) * 31 + 22
    keys = [
        ("computed before", GREY, SOFT[GREY]),
        ("computed in this step", BLUE, SOFT[BLUE]),
        ("sampled in this step", ORANGE, SOFT[ORANGE]),
        ("waits", PALE, CARD),
    ]
    x = LEFT
    for words, colour, fill in keys:
        canvas.box(x, y - 7, 20, 14, colour=colour, fill=fill, radius=2, dashed=colour == ORANGE)
        canvas.text(x + 27, y, words, size=12)
        x += 56 + 6.2 * len(words)
    return canvas


def play() -> list[tuple[int, int, int]]:
    """(computed before, computed after, known after) of each step, by our own scheduler."""
    scheduler = Scheduler(
        SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=4),
        CacheConfig(block_size=4, num_gpu_blocks=16),
    )
    params = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT)
    request = Request("fox", range(len(WORDS) - NUM_OUTPUT), params)
    scheduler.add_request(request)
    rows = []
    while scheduler.has_unfinished_requests():
        start = request.num_computed_tokens
        plan = scheduler.schedule()
        ready = request.num_computed_tokens >= request.num_tokens
        end = request.num_computed_tokens
        scheduler.update_from_output(plan, {"fox": [0]} if ready else {})
        rows.append((start, end, request.num_tokens))
    return rows


def _x(place: int) -> float:
    return LEFT + place * WIDTH
