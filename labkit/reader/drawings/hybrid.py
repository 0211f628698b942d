"""Phase 18: four rows of squares that remember differently, and what they cost by length.

Both are counted in the block tables of the engine's own managers, while they serve one request.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from labkit.reader.drawings.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    Canvas,
)
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.finish_step import finish_step
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

USED, NULL, KEPT = "■", "·", "□"
BLOCK, WINDOW, PROMPT, LENGTH = 4, 16, 26, 48
ROWS = {
    "full": GroupSpec("full", BLOCK),
    "window 16": GroupSpec("sliding_window", BLOCK, window=WINDOW),
    "state": GroupSpec("mamba", BLOCK, mode="align"),
    "latent": GroupSpec("full", BLOCK),
}
"""What the rows of the picture remember. A latent is kept as keys and values are: all of them."""
COLOURS = dict(zip(ROWS, (BLUE, ORANGE, GREEN, PURPLE), strict=True))


def serve(
    groups: Sequence[GroupSpec],
    prompt: int,
    length: int,
    num_gpu_blocks: int,
    budget: int = 64,
    max_model_len: int = 64,
) -> Iterator[tuple[SchedulerOutput, HybridKVCacheManager, Request]]:
    """One request, step by step, until it has ``length`` computed tokens: the plan that was just
    made, the manager, and the request."""
    scheduler = make_scheduler(
        SchedulerConfig(budget, max_num_seqs=2, max_model_len=max_model_len),
        CacheConfig(groups[0].block_size, num_gpu_blocks),
        groups=groups,
    )
    params = SamplingParams(temperature=0.0, max_tokens=max_model_len - prompt, ignore_eos=True)
    request = Request("r", range(prompt), params)
    scheduler.add_request(request)
    manager = scheduler.kv_cache_manager
    assert isinstance(manager, HybridKVCacheManager)
    while request.num_computed_tokens < length:
        plan = scheduler.schedule()
        yield plan, manager, request
        due = [7] if request.num_computed_tokens >= request.num_tokens else []
        finish_step(scheduler, plan, ModelRunnerOutput({"r": due} if due else {}))


def squares(manager: HybridKVCacheManager, request: Request) -> list[str]:
    """A row for each group, a character for each block: held, given back and still findable, or
    given back and gone."""
    rows = []
    for one in manager.managers:
        row = ""
        for index, block in enumerate(one.req_to_blocks.get(request.request_id, ())):
            if block is not one.null_block:
                row += USED
                continue
            is_hashed = (index + 1) * one.hashes_per_block <= len(request.block_hashes)
            found = is_hashed and one.look_up(request, index, [one.group_id])
            row += KEPT if found else NULL
        rows.append(row)
    return rows


def four_rows() -> Canvas:
    """The tables of four groups after 48 tokens, in a pool that has had to reuse blocks."""
    canvas = Canvas(800, 262, "Four groups of layers after 48 tokens: full, window, state, latent")
    *_, (_, manager, request) = serve(list(ROWS.values()), PROMPT, LENGTH, POOL)
    left, wide = 128.0, 46.0
    for token in range(0, LENGTH + 1, BLOCK):
        x = left + token // BLOCK * wide
        words = "next" if token == LENGTH else str(token)
        canvas.text(x + 3, 20, words, size=11, colour=GREY)
    for number, (name, row) in enumerate(zip(ROWS, squares(manager, request), strict=True)):
        y, colour = 36 + number * 42, COLOURS[name]
        canvas.text(left - 12, y + 15, name, anchor="end", bold=True)
        high = 12 if name == "latent" else 30
        for index, square in enumerate(row):
            x = left + index * wide
            if square == NULL:
                canvas.dot(x + wide / 2, y + 15, PALE, 3)
                continue
            is_held = square == USED
            canvas.box(
                x + 2, y + (30 - high) / 2, wide - 6, high,
                colour=colour, fill=None if is_held else "#ffffff", dashed=not is_held, radius=3,
            )  # fmt: skip
        canvas.text(left + len(row) * wide + 10, y + 15, NOTES[name], size=12)
    y = 220
    canvas.box(left, y, 24, 16, colour=GREY, radius=2)
    canvas.text(left + 32, y + 8, "held", size=12)
    canvas.box(left + 90, y, 24, 16, colour=GREY, fill="#ffffff", dashed=True, radius=2)
    canvas.text(left + 122, y + 8, "given back, still findable", size=12)
    canvas.dot(left + 306, y + 8, PALE, 3)
    canvas.text(left + 318, y + 8, "null: given back and reused, or never there", size=12)
    return canvas


POOL = 37
"""Blocks of the picture's pool, so few that some that were given back have been reused."""
NOTES = {
    "full": "grows",
    "window 16": "slides",
    "state": "moves",
    "latent": "grows, thinly",
}

# ------------------------------------------------------------------ bytes by length
TOKENS_A_BLOCK = 16
LAYERS: dict[str, tuple[GroupSpec, int]] = {
    "full": (GroupSpec("full", TOKENS_A_BLOCK), TOKENS_A_BLOCK * 2 * 8 * 128 * 2),
    "window 1,024": (
        GroupSpec("sliding_window", TOKENS_A_BLOCK, window=1024),
        TOKENS_A_BLOCK * 2 * 8 * 128 * 2,
    ),
    "state": (GroupSpec("mamba", 1024, mode="align"), 32 * 128 * 128 * 4 + 3 * 8192 * 2),
    "latent": (GroupSpec("full", TOKENS_A_BLOCK), TOKENS_A_BLOCK * (512 + 64) * 2),
}
"""One layer of each kind, and the bytes of its block: 8 KV heads of 128 in bf16; a Qwen3-Next state
of 32 heads with its convolution; a DeepSeek-V3 latent."""
LENGTHS = [2**power for power in range(4, 16)]
DECODED = 8


def bytes_by_length(name: str) -> list[int]:
    """What one layer of a request holds after each of LENGTHS tokens, the last DECODED one by one:
    the blocks of a chunk of a prompt have left the window by then."""
    spec, block_bytes = LAYERS[name]
    held = []
    for length in LENGTHS:
        num_blocks = 2 * (-(-length // spec.block_size) + 4)
        steps = serve([spec, spec], length - DECODED, length, num_blocks, 4096, length + 8)
        *_, (_, manager, _) = steps
        held.append(sum(bool(i) for i in manager.get_group_block_ids("r")[1]) * block_bytes)
    return held


def memory_by_length() -> Canvas:
    """Bytes of one layer over the length of its request, both in powers of two."""
    canvas = Canvas(800, 350, "Bytes that one layer keeps by the length of the request")
    left, right, top, bottom = 96.0, 640.0, 24.0, 290.0
    low, high = 13, 28

    def at(length: float, size: float) -> tuple[float, float]:
        x = (math.log2(length) - 4) / 11 * (right - left)
        return left + x, bottom - (math.log2(size) - low) / (high - low) * (bottom - top)

    canvas.line([(left, top), (left, bottom), (right, bottom)], colour=INK)
    for power in range(low + 1, high, 3):
        y = at(16, 2**power)[1]
        canvas.line([(left, y), (right, y)], colour=PALE, width=0.7)
        words = f"{2 ** (power - 10):,} KiB" if power < 20 else f"{2 ** (power - 20):,} MiB"
        canvas.text(left - 8, y, words, anchor="end", size=11, colour=GREY)
    for length in LENGTHS[::2]:
        canvas.text(at(length, 1)[0], bottom + 14, f"{length:,}", anchor="middle", size=11)
    canvas.text(right, bottom + 36, "computed tokens of the request", anchor="end", size=12)
    for name, colour in zip(LAYERS, (BLUE, ORANGE, GREEN, PURPLE), strict=True):
        path = [at(n, size) for n, size in zip(LENGTHS, bytes_by_length(name), strict=True)]
        canvas.line(path, colour=colour, width=2)
        for x, y in path:
            canvas.dot(x, y, colour, 3)
        canvas.text(right + 14, path[-1][1], name, colour=colour, bold=True)
    return canvas
