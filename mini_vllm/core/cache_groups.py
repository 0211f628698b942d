"""Layers that remember alike: what a group of layers keeps of the tokens it has seen.

Layers of one kind share a block table, and all groups share one pool::

    "full"            o o o o o o o o o o   every token is read by every later one; so are latents
    "sliding_window"  . . . . . . o o o o   the last `window` tokens, the newest one included
    "chunked_local"   . . . . . . . . o o   the tokens of the newest one's chunk of `chunk` tokens
    "mamba"           . . . . . . . . . S   one state that stands for all of them

Source: vllm/v1/kv_cache_interface.py#L97-L134 (KVCacheSpec) @ v0.22.1
"""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.config.checks import require_at_least, require_one_of

KINDS = ("full", "sliding_window", "chunked_local", "mamba")
MODES = ("none", "align", "all")


@dataclass(frozen=True)
class GroupSpec:
    """What the layers of one group remember.

    Args:
        kind: one of ``KINDS``.
        block_size: tokens per block.
        window: of "sliding_window": tokens that a token reads, itself included.
        chunk: of "chunked_local": tokens per chunk; no token reads beyond its own chunk.
        mode: of "mamba": where states are kept, so that a later request can go on from them.
            "none": the running state only. "align": where a step ends at a block's end. "all": at
            every block's end.

    Raises:
        ValueError: for an unknown kind or mode, or a size below 1 that the kind needs.
    """

    kind: str
    block_size: int
    window: int = 0
    chunk: int = 0
    mode: str = "none"

    def __post_init__(self) -> None:
        require_one_of("kind", self.kind, KINDS)
        require_at_least("block_size", self.block_size, 1, "16 is usual")
        if self.kind == "sliding_window":
            require_at_least("window", self.window, 1, "a token reads at least itself")
        if self.kind == "chunked_local":
            require_at_least("chunk", self.chunk, 1, "a token's chunk holds at least itself")
        require_one_of("mode", self.mode, MODES)
