"""An image as the scheduler has it: its place in the prompt, and its hash.

Plain data without torch. Users import both classes from :mod:`mini_vllm.multimodal.inputs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any


@dataclass(frozen=True)
class PlaceholderRange:
    """The span of prompt positions that stands for one image.

    ::

        prompt      a  b  #  #  #  #  #  c          # is the image's placeholder token
        position    0  1  2  3  4  5  6  7          PlaceholderRange(offset=2, length=5)

    Some models write separators inside the span, such as the end of a row. Those positions are
    computed from their own token and get nothing from the encoder: ``is_embed`` is False there.

    Source: vllm/multimodal/inputs.py#L119-L199 (PlaceholderRange) @ v0.22.1
    """

    offset: int
    """Its first position in the expanded prompt, with all placeholders."""
    length: int
    """The number of its positions."""
    is_embed: tuple[bool, ...] | None = None
    """For each position, whether it gets an embedding from the encoder; None: all do."""

    def __post_init__(self) -> None:
        if self.offset < 0 or self.length < 1:
            raise ValueError(
                f"a placeholder has offset {self.offset} and length {self.length}; they must be "
                "at least 0 and 1"
            )
        if self.is_embed is not None and len(self.is_embed) != self.length:
            raise ValueError(
                f"is_embed has {len(self.is_embed)} entries for a placeholder of length "
                f"{self.length}; give one for each position"
            )

    @property
    def end(self) -> int:
        """The first position after it."""
        return self.offset + self.length

    @cached_property
    def embeds_cumsum(self) -> list[int] | None:
        """Embeddings up to and including each position; None if every position takes one."""
        return None if self.is_embed is None else list(accumulate(map(int, self.is_embed)))

    def get_num_embeds(self) -> int:
        """Rows that the encoder makes for the image; the budget and the cache count these."""
        return self.length if self.embeds_cumsum is None else self.embeds_cumsum[-1]

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """Which rows of the encoder's output the positions ``start_idx .. end_idx`` take.

        ``end_idx`` is the first behind them. A step may compute only a part of the span. Positions
        count from the span's beginning; so do rows, and without a mask both are the same. With one,
        a row's number is the number of embeddings before it::

            is_embed     .  #  .  #  #          position 0 to 4
            row             0     1  2          get_embeds_indices_in_range(3, 5) == (1, 3)

        Args:
            start_idx: at least 0.
            end_idx: at least ``start_idx``, at most ``length``.

        Returns:
            The first row, and the row behind the last.

        Source: vllm/multimodal/inputs.py#L158-L177 (PlaceholderRange.get_embeds_indices_in_range)
        @ v0.22.1
        """
        if self.embeds_cumsum is None:
            return start_idx, end_idx
        rows_before = [0, *self.embeds_cumsum]
        return rows_before[start_idx], rows_before[end_idx]


@dataclass(frozen=True)
class MultiModalFeatureSpec:
    """One image of a prompt.

    Source: vllm/multimodal/inputs.py#L302-L332 (MultiModalFeatureSpec) @ v0.22.1
    """

    data: Any
    """Arguments of the encoder; None where nothing is encoded."""
    modality: str
    """Always "image"."""
    identifier: str
    """A hash of the content: equal for equal images in all requests."""
    mm_position: PlaceholderRange
