"""What callers of a scheduler see of it besides its methods."""

from __future__ import annotations

import enum


class PauseState(enum.IntEnum):
    """Whether the scheduler hands out tokens, and to which requests.

    Source: vllm/v1/core/sched/interface.py#L22-L33 (PauseState) @ v0.22.1
    """

    UNPAUSED = 0
    PAUSED_NEW = 1
    """Running requests go on, none is admitted."""
    PAUSED_ALL = 2
    """Nothing is scheduled."""


class NoProgressError(RuntimeError):
    """A step scheduled nothing although a request could run, and no later step will differ."""
