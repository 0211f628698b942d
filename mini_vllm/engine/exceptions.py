"""What goes wrong with an engine as a whole, not with one request.

Source: vllm/v1/engine/exceptions.py#L1-L18 (EngineGenerateError, EngineDeadError) @ v0.22.1
"""

from __future__ import annotations

from mini_vllm.errors import EngineDeadError

__all__ = ["EngineDeadError", "EngineGenerateError", "QueueFullError"]


class EngineGenerateError(Exception):
    """A request failed for a reason that is not its caller's fault; the engine goes on."""


class QueueFullError(Exception):
    """As many requests or tokens wait as the service accepts; try again later."""
