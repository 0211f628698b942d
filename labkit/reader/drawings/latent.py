"""Phase 04: what a token leaves behind in a layer, with heads of its own and with MLA."""

from __future__ import annotations

from labkit.reader.drawings.canvas import BLUE, GREEN, GREY, ORANGE, Canvas

ITEMSIZE, LAYERS, MEMORY = 2, 61, 40e9
"""bfloat16; DeepSeek-V3's layers; bytes set aside for the cache."""
KINDS = (
    ("128 heads, keys and values of 128", 2 * 128 * 128, ORANGE),
    ("8 KV heads, keys and values of 128", 2 * 8 * 128, BLUE),
    ("MLA: 512 + 64", 512 + 64, GREEN),
)


def bytes_of(numbers: int) -> int:
    """What one token leaves behind in one layer."""
    return numbers * ITEMSIZE


def tokens_in_memory(numbers: int) -> int:
    """How many tokens of context fit, with the layers of DeepSeek-V3."""
    return int(MEMORY // (bytes_of(numbers) * LAYERS))


def latent() -> Canvas:
    """Three bars to scale, and what they mean for a cache of 40 GB."""
    canvas = Canvas(760, 190, "Bytes of a token in a layer, and the tokens that fit into 40 GB")
    widest = bytes_of(KINDS[0][1])
    canvas.text(20, 24, "bytes of a token in a layer", bold=True)
    canvas.text(740, 24, f"tokens in 40 GB, {LAYERS} layers", bold=True, anchor="end")
    for row, (name, numbers, colour) in enumerate(KINDS):
        y = 44 + row * 48
        width = 480 * bytes_of(numbers) / widest
        canvas.box(20, y, width, 20, colour=colour, radius=1)
        beside = 20 + width + 8 if row else 30
        canvas.text(beside, y + 10, f"{bytes_of(numbers):,}", size=12)
        canvas.text(20, y + 31, name, size=11, colour=GREY)
        canvas.text(740, y + 10, f"{tokens_in_memory(numbers):,}", anchor="end", mono=True)
    return canvas
