"""Phases 02, 03 and 05: shared blocks, a budget spent step by step, and a flat batch.

Each is drawn from what the engine's own code says, not from numbers that were written down.
"""

from __future__ import annotations

import json
from pathlib import Path

from labkit.reader.drawings.canvas import (
    BLUE,
    CARD,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    RED,
    SOFT,
    Canvas,
)
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

CLIENTS = {"ana": BLUE, "ben": GREEN, "cleo": PURPLE}
STORY = Path(__file__).parents[3] / "phases" / "03-scheduler" / "three-clients.json"


def shared_blocks() -> Canvas:
    """Three tables over one pool, in the state of phase 02's third line."""
    manager = KVCacheManager(num_gpu_blocks=8, block_size=4, max_model_len=14)
    system = list(range(8))
    prompts = {"ana": [*system, 10], "ben": [*system, 20, 21], "cleo": list(range(30, 35))}
    tables = {}
    for name, prompt in prompts.items():
        request = Request(name, prompt)
        request.set_block_hasher(manager.block_hasher)
        hits, num_hit = manager.get_computed_blocks(request)
        manager.allocate_slots(request, request.num_tokens - num_hit, num_hit, hits)
        tables[name] = manager.get_block_ids(name)
    canvas = Canvas(760, 300, "Tables of three clients over one pool; two blocks have two holders")
    for row, (name, table) in enumerate(tables.items()):
        y, colour = 26 + row * 46, CLIENTS[name]
        canvas.text(20, y + 15, name, bold=True, colour=colour)
        for place, block in enumerate(table):
            canvas.box(78 + place * 46, y, 42, 30, str(block), colour=colour, mono=True)
        words = f"{len(prompts[name])} tokens"
        canvas.text(78 + len(table) * 46 + 8, y + 15, words, size=12, colour=GREY)
    canvas.text(20, 212, "pool", bold=True)
    for held in manager.block_pool.blocks:
        _block(canvas, held.block_id, tables, prompts, published=held.block_hash is not None)
    words = (
        "Two tables name blocks 1 and 2: ref_cnt 2. A thick border: full, and findable by its hash."
    )
    canvas.text(78, 280, words, size=12, colour=GREY)
    return canvas


def _block(
    canvas: Canvas,
    block: int,
    tables: dict[str, list[int]],
    prompts: dict[str, list[int]],
    published: bool,
) -> None:
    x, y = 78 + block * 82, 190
    holders = [name for name, table in tables.items() if block in table]
    canvas.text(x + 36, y + 64, f"block {block}", anchor="middle", size=11, colour=GREY)
    if block == 0:
        canvas.text(x + 36, y - 12, "null", anchor="middle", size=11, colour=GREY)
    elif holders:
        words = " and ".join(holders)
        canvas.text(x + 36, y - 12, words, anchor="middle", size=11, colour=GREY)
    else:
        canvas.text(x + 36, y - 12, "free", anchor="middle", size=11, colour=GREY)
    for offset in range(4):
        fill, words = CARD, ""
        if holders:
            position = tables[holders[0]].index(block) * 4 + offset
            if position < len(prompts[holders[0]]):
                fill, words = SOFT[CLIENTS[holders[0]]], str(position)
            if len(holders) > 1:
                fill = SOFT[ORANGE]
        canvas.box(x + offset * 18, y, 18, 44, words, colour=PALE, fill=fill, radius=0, size=10)
    canvas.box(x, y, 72, 44, colour=INK if published else GREY, fill="none", radius=0)
    if published:
        canvas.box(x - 1.5, y - 1.5, 75, 47, colour=INK, fill="none", radius=0)


def budget() -> Canvas:
    """What each step of phase 03's story spends, and who holds the blocks after it."""
    steps = _play()
    canvas = Canvas(
        760, 330, "Tokens of each step by client, and the blocks that each client holds"
    )
    left, width, unit = 96.0, 60.0, 17.0
    canvas.text(20, 104, "tokens", bold=True)
    base = 34 + 8 * unit
    canvas.line(
        [(left, base - 8 * unit), (left + len(steps) * width, base - 8 * unit)],
        dashed=True,
        colour=RED,
    )
    canvas.text(left - 8, base - 8 * unit, "budget 8", anchor="end", size=11, colour=RED)
    canvas.line([(left, base), (left + len(steps) * width, base)], colour=INK)
    for number, (scheduled, held, preempted) in enumerate(steps):
        x, y = left + number * width + 6, base
        for name, tokens in scheduled.items():
            y -= tokens * unit
            canvas.box(
                x,
                y,
                width - 12,
                tokens * unit,
                str(tokens),
                colour=CLIENTS[name],
                radius=0,
                size=11,
            )
        canvas.text(x + 24, base + 14, str(number), anchor="middle", size=12, colour=GREY)
        y = base + 44
        for name, blocks in held.items():
            for _ in range(blocks):
                canvas.box(x, y, width - 12, 12, colour=CLIENTS[name], radius=1)
                y += 14
        for _ in range(6 - sum(held.values())):
            canvas.box(x, y, width - 12, 12, colour=PALE, fill=CARD, radius=1)
            y += 14
        for place, name in enumerate(preempted):
            canvas.text(
                x + 24, base + 139 + place * 14, f"{name} out", anchor="middle", size=11, colour=RED
            )
    canvas.text(20, base + 14, "step", size=12, colour=GREY)
    canvas.text(20, base + 56, "blocks", bold=True)
    for place, (name, colour) in enumerate(CLIENTS.items()):
        canvas.box(560 + place * 66, 14, 14, 14, colour=colour)
        canvas.text(580 + place * 66, 21, name, size=12)
    return canvas


Step = tuple[dict[str, int], dict[str, int], list[str]]


def _play() -> list[Step]:
    """(tokens, blocks held, preempted) of each step, by our own scheduler."""
    story = json.loads(STORY.read_text("utf-8"))
    config = story["config"]
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_num_seqs=config["max_num_seqs"],
        ),
        CacheConfig(
            block_size=config["block_size"],
            num_gpu_blocks=config["num_gpu_blocks"],
            enable_prefix_caching=config["enable_prefix_caching"],
        ),
    )
    for number, event in enumerate(e for e in story["events"] if e["op"] == "add"):
        params = SamplingParams(temperature=0.0, max_tokens=event["max_tokens"])
        prompt = range(event["prompt"]["len"])
        scheduler.add_request(Request(event["id"], prompt, params, arrival_time=float(number)))
    steps = []
    while scheduler.has_requests():
        plan = scheduler.schedule()
        if not plan.num_scheduled_tokens:
            break
        manager = scheduler.kv_cache_manager
        held = {r.request_id: len(manager.get_block_ids(r.request_id)) for r in scheduler.running}
        steps.append((dict(plan.num_scheduled_tokens), held, list(plan.preempted_req_ids)))
        sampled = {
            name: [0]
            for name in plan.num_scheduled_tokens
            if scheduler.requests[name].num_computed_tokens >= scheduler.requests[name].num_tokens
        }
        scheduler.update_from_output(plan, sampled)
    return steps


def flat_batch() -> Canvas:
    """From rows that stay to one line of tokens: step 2 of the same three clients."""
    known = {"ana": 11, "ben": 7, "cleo": 3}
    scheduled = {"ana": 1, "ben": 1, "cleo": 3}
    canvas = Canvas(760, 262, "Three rows, and the flat batch that is gathered from them")
    canvas.text(20, 22, "rows: tokens that are known", bold=True)
    flat: list[tuple[str, int, float, float]] = []
    x: float
    y: float
    for row, (name, total) in enumerate(known.items()):
        y, colour = 40 + row * 36, CLIENTS[name]
        canvas.text(20, y + 13, f"{row}  {name}", colour=colour)
        for position in range(14):
            x = 92 + position * 44
            new = total - scheduled[name] <= position < total
            words = f"{name[0]}{position}" if position < total else ""
            canvas.box(
                x, y, 40, 26, words, colour=colour if new else PALE, mono=True, size=12,
                fill=None if new else CARD, ink=INK if new else GREY,
            )  # fmt: skip
            if new:
                flat.append((name, position, x + 20, y + 28))
    canvas.text(20, 216, "flat batch", bold=True)
    for place, (name, position, x, y) in enumerate(flat):
        end = 162 + place * 92
        canvas.line([(x, y), (end + 20, 198)], colour=CLIENTS[name], arrow=True)
        canvas.box(
            end, 202, 40, 28, f"{name[0]}{position}", colour=CLIENTS[name], mono=True, size=12
        )
        canvas.text(end + 20, 244, f"position {position}", anchor="middle", size=11, colour=GREY)
    words = "one matrix\nof five rows"
    canvas.text(162 + len(flat) * 92, 216, words, size=12, colour=GREY)
    return canvas
