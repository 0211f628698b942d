"""What goes wrong with an engine as a whole, not with one request.

Source: vllm/v1/engine/exceptions.py#L1-L18 (EngineGenerateError, EngineDeadError) @ v0.22.1
"""

from __future__ import annotations


class EngineGenerateError(Exception):
    """A request failed for a reason that is not its caller's fault; the engine lives."""


class EngineDeadError(Exception):
    """The engine is gone, and every request with it. There is no way back: start it anew."""


class QueueFullError(Exception):
    """As many requests or tokens wait as the service accepts; try again later."""
