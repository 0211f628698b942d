"""Objects of an event loop are used in the loop's own thread only.

Source: vllm/utils/async_utils.py#L251-L263 (run_in_loop) @ v0.22.1
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

PATIENCE = 2.0
"""Seconds that another thread waits for a loop: one that is stuck must not stop its caller, too."""


def runs_elsewhere(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop runs in another thread than this."""
    try:
        return loop.is_running() and loop is not asyncio.get_running_loop()
    except RuntimeError:  # no loop runs in this one
        return loop.is_running()


def do_in(loop: asyncio.AbstractEventLoop | None, act: Callable[[], object]) -> None:
    """Call ``act`` where ``loop`` runs, or here if it does not; returns when that is done.

    If the loop is closed, ``act`` is not called.
    """
    if loop is not None and loop.is_closed():
        return
    if loop is None or not runs_elsewhere(loop):
        act()
        return
    done = threading.Event()

    def act_there() -> None:
        try:
            act()
        finally:
            done.set()

    loop.call_soon_threadsafe(act_there)
    done.wait(PATIENCE)


def post_to(loop: asyncio.AbstractEventLoop, act: Callable[..., object], *args: object) -> None:
    """Have ``act(*args)`` called in ``loop``, from any thread, without waiting for it.

    If the loop is closed, nothing is called: its readers have ended with it.
    """
    if not loop.is_closed():
        loop.call_soon_threadsafe(act, *args)
