"""Phase 05: what fills a GPU's memory, and how many blocks are left."""

from __future__ import annotations

from labkit.reader.drawings.canvas import BLUE, GREEN, GREY, ORANGE, PALE, PURPLE, Canvas

GPUS = {"L4, 24 GB": 24e9, "A100, 80 GB": 80e9, "H200, 141 GB": 141e9}
UTILIZATION = 0.92
"""vLLM's default: `CacheConfig.gpu_memory_utilization`."""
WEIGHTS = 16.4e9
"""Qwen3-8B: 8.2 billion weights in bfloat16."""
ACTIVATIONS = 2e9
"""An assumption: what a profile run measures depends on the budget of a step."""
TOKEN_BYTES = 2 * 36 * 8 * 128 * 2
"""Keys and values, layers, KV heads, head size, bytes: Qwen3-8B's shape."""
BLOCK_SIZE = 16


def num_blocks(memory: float) -> int:
    """Blocks that are left when weights and activations have had their share."""
    left = memory * UTILIZATION - WEIGHTS - ACTIVATIONS
    return int(left // (TOKEN_BYTES * BLOCK_SIZE))


def blocks() -> Canvas:
    """A bar for each GPU."""
    canvas = Canvas(800, 240, "Weights, activations, KV cache and rest in the memory of three GPUs")
    left, width = 120.0, 520.0
    scale = width / max(GPUS.values())
    for row, (name, memory) in enumerate(GPUS.items()):
        y = 22 + row * 54
        canvas.text(left - 10, y + 16, name, anchor="end", size=12)
        x = left
        kv = memory * UTILIZATION - WEIGHTS - ACTIVATIONS
        parts = (
            (WEIGHTS, BLUE), (ACTIVATIONS, ORANGE), (kv, GREEN), (memory * (1 - UTILIZATION), GREY),
        )  # fmt: skip
        for size, colour in parts:
            words = f"{size / 1e9:.1f}" if size * scale > 32 else ""
            canvas.box(x, y, size * scale, 32, words, colour=colour, radius=0, size=11)
            x += size * scale
        count = num_blocks(memory)
        words = f"{count:,} blocks\n{count * BLOCK_SIZE:,} tokens"
        canvas.text(x + 8, y + 16, words, size=11)
    legend = ((BLUE, "weights"), (ORANGE, "activations, assumed 2 GB"), (GREEN, "KV cache"),
              (GREY, "left alone: 8 %"))  # fmt: skip
    x = left
    for colour, words in legend:
        canvas.box(x, 200, 13, 13, colour=colour, radius=1)
        canvas.text(x + 20, 207, words, size=12)
        x += 44 + 7 * len(words)
    return canvas


def groups() -> Canvas:
    """Six layers of two kinds, in three groups that share one pool of pages."""
    canvas = Canvas(760, 224, "A hybrid model's layers in groups, each with its own block table")
    kinds = ("window", "window", "full") * 2
    canvas.text(20, 26, "layers of the model", bold=True)
    for layer, kind in enumerate(kinds):
        colour = GREEN if kind == "full" else PURPLE
        canvas.box(190 + layer * 90, 10, 82, 32, f"{layer}  {kind}", colour=colour, size=12)
    canvas.text(20, 96, "groups", bold=True)
    for group, members in enumerate(((2, 5), (0, 3), (1, 4))):
        colour = GREEN if group == 0 else PURPLE
        x = 190 + group * 180
        words = f"layers {members[0]} and {members[1]}"
        canvas.box(x, 78, 168, 34, words, colour=colour, size=12)
        table = ("7 2 5 9", "- - 3 1", "- - 8 4")[group]
        canvas.text(x + 84, 128, f"table  {table}", anchor="middle", mono=True, size=12)
    canvas.text(20, 172, "pool of pages", bold=True)
    owner = {7: 0, 2: 0, 5: 0, 9: 0, 3: 1, 1: 1, 8: 2, 4: 2}
    for page in range(11):
        group = owner.get(page, -1)
        colour = PALE if group < 0 else GREEN if group == 0 else PURPLE
        fill = "#ffffff" if group < 0 else None
        canvas.box(190 + page * 49, 156, 44, 32, str(page), colour=colour, fill=fill, size=12)
    words = "- : outside the window; the null block stands there, and the page serves others"
    canvas.text(190, 206, words, size=12, colour=GREY)
    return canvas
