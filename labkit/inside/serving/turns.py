"""Time without a clock: turns of the event loop, and what becomes of who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

TURNS = 60
"""Turns of the event loop after which a task that has not come back never will."""
SPINS = 200
"""Waits that return at once, after which a loop is called endless."""


class Stuck(Exception):
    """A task waits for what will never come, or runs in circles."""


async def turns(count: int = TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run it in an event loop of its own, which keeps quiet about tasks that were left."""

    async def quietly() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        return await work

    return asyncio.run(quietly())


def named(error: BaseException, *known: type[BaseException]) -> str:
    """An error as text; that of a function that is not written yet, or of a name that does not
    exist, is raised: its line is what helps. A subclass of an error of the engine, or of one of
    `known`, is that error: what catches the one catches the other.
    """
    if isinstance(error, NotImplementedError | NameError):
        raise error
    kinds = type(error).__mro__
    ours = ("mini_vllm.engine.exceptions", "mini_vllm.errors")
    kind = next((k for k in kinds if k in known or k.__module__ in ours), kinds[0])
    return f"{kind.__name__}: {error}".removesuffix(": ")


def how_ended(task: asyncio.Future[Any], *known: type[BaseException]) -> str:
    """What a task returned, or how it failed; `known`: as for `named`."""
    if not task.done():
        return "waits for ever"
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return str(task.result()) if error is None else named(error, *known)
