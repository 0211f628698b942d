"""The reference attention, which counts how often it is called."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mini_vllm.attention.reference import ReferenceAttention
from mini_vllm.attention.selector import AttentionSelectorConfig
from mini_vllm.platforms.interface import Platform


class CountingAttention(ReferenceAttention):
    """One call for each layer of each step."""

    calls = 0

    @classmethod
    def validate_configuration(
        cls, platform: Platform, config: AttentionSelectorConfig
    ) -> list[str]:
        """Every reason why it cannot do the work; none: it can."""
        return [] if platform.is_host else ["it counts on the host alone"]

    def forward(self, *args: Any, **options: Any) -> Tensor:
        """See `AttentionBackend`."""
        CountingAttention.calls += 1
        return ReferenceAttention.forward(*args, **options)
