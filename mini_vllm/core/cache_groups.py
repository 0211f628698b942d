"""Layers that remember alike: what a group of layers keeps of the tokens it has seen.

Layers of one kind share a block table, and all groups share one pool::

    "full"            o o o o o o o o o o   every token is read by every later one; so are latents
    "sliding_window"  . . . . . . o o o o   the last `window` tokens, the newest one included
    "chunked_local"   . . . . . . . . o o   the tokens of the newest one's chunk of `chunk` tokens
    "mamba"           . . . . . . . . . S   one state that stands for all of them

Source: vllm/v1/kv_cache_interface.py#L97-L134 (KVCacheSpec) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from mini_vllm.config.checks import require_at_least, require_one_of
from mini_vllm.core.kv_cache_manager import cdiv

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

    def peak_blocks(self, num_tokens: int, max_num_batched_tokens: int, max_model_len: int) -> int:
        """The most blocks that a sequence of ``num_tokens`` tokens holds at once; never more than
        its tokens fill.

        Beside a window (without the token that is new) or a chunk lie the tokens of a step,
        ``max_num_batched_tokens``, and all of them are at most ``max_model_len``. A window may
        begin inside a block, hence 1 more. A state that is kept where a step ends ("align") has two
        blocks while it moves from one into the next. All others keep everything.

        Source: vllm/v1/kv_cache_interface.py#L410-L483
        (SlidingWindowSpec.max_admission_blocks_per_request) @ v0.22.1
        """
        num_blocks = cdiv(num_tokens, self.block_size)
        match self.kind:
            case "sliding_window":
                at_once = min(self.window - 1 + max_num_batched_tokens, max_model_len)
                return min(num_blocks, cdiv(at_once, self.block_size) + 1)
            case "chunked_local":
                at_once = min(self.chunk + max_num_batched_tokens, max_model_len)
                return min(num_blocks, cdiv(at_once, self.block_size))
            case "mamba" if self.mode == "align":
                return min(num_blocks, 2)
        return num_blocks


def peak_blocks(
    groups: Sequence[GroupSpec], num_tokens: int, max_num_batched_tokens: int, max_model_len: int
) -> int:
    """The most blocks of all groups that a sequence of ``num_tokens`` tokens holds at once."""
    return sum(
        group.peak_blocks(num_tokens, max_num_batched_tokens, max_model_len) for group in groups
    )


def longest_sequence(
    groups: Sequence[GroupSpec], num_blocks: int, max_num_batched_tokens: int, max_model_len: int
) -> int:
    """The most tokens, up to ``max_model_len``, of a sequence that ``num_blocks`` blocks hold.

    That is no product of blocks and tokens: a window or a state stands for more tokens than it has
    slots, and what a sequence holds (:func:`peak_blocks`) never shrinks when it grows. 0 if not
    even one token fits. Calls :func:`peak_blocks` a few times, not once a token.
    """
    low, high = 0, max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if peak_blocks(groups, middle, max_num_batched_tokens, max_model_len) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def group_layers(kinds: Sequence[Hashable]) -> list[list[int]]:
    """Deal layers into groups of one kind each, all of (nearly) the same size.

    The size is that of the rarest kind, or of the commonest if that has fewer than 1.5 times as
    many layers. A kind with more layers is dealt out, like cards, to as few groups as have no more
    than that each::

        kinds    w w w w w F w w w w w F     5 windows to each full layer
        groups   [0 6] [1 7] [2 8] [3 9] [4 10] [5 11]

    Args:
        kinds: of each layer, what it remembers; equal ones may share a block table.

    Returns:
        The layers of each group; kinds stand in the order of their first layers.

    Source: vllm/v1/core/kv_cache_utils.py#L1057-L1176
    (_get_kv_cache_groups_uniform_page_size) @ v0.22.1
    """
    layers: dict[Hashable, list[int]] = {}
    for index, kind in enumerate(kinds):
        layers.setdefault(kind, []).append(index)
    fewest, most = (chosen(map(len, layers.values())) for chosen in (min, max))
    size = most if most < 1.5 * fewest else fewest
    groups = []
    for own in layers.values():
        num_groups = cdiv(len(own), size)
        groups += [own[start::num_groups] for start in range(num_groups)]
    return groups
