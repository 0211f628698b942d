"""Fast attention on CPU (the reference for now)."""

from __future__ import annotations

from mini_vllm.attention.reference import ReferenceAttention


class CpuAttention(ReferenceAttention):
    """Placeholder until the measured version lands."""
