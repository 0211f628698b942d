"""What a learner's file raises and others catch is found with its line."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from labkit.judge import caught


class Learner:
    @property
    def size(self) -> int:
        return self.nothing  # type: ignore[attr-defined, no-any-return]  # here: property

    def items(self) -> Iterator[int]:
        yield 1
        yield [][1]  # here: generator

    async def answer(self) -> int:
        await asyncio.sleep(0)
        return None + 1  # type: ignore[operator, no-any-return]  # here: task

    def __call__(self, *_: object) -> None:
        {}["r0"]  # here: callback

    def refuse(self) -> None:
        if not self.__dict__:
            raise ValueError("an unknown name")

    def handle(self) -> int:
        try:
            return int("three")
        except ValueError:
            return 3

    def poll(self) -> None:
        with contextlib.suppress(queue.Empty):
            queue.Queue[int]().get_nowait()
        for _ in iter([1]):
            pass


def anyhow(function: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):
        function()


def as_task() -> None:
    async def both() -> None:
        await asyncio.gather(Learner().answer(), return_exceptions=True)

    asyncio.run(both())


def as_callback() -> None:
    async def calls() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        loop.call_soon(Learner())
        await asyncio.sleep(0)

    asyncio.run(calls())


def in_a_thread() -> None:
    thread = threading.Thread(target=lambda: anyhow(Learner()))
    thread.start()
    thread.join(timeout=60)


def line_of(mark: str) -> int:
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, text in enumerate(file, 1) if text.endswith(f"# here: {mark}\n"))


CASES = {
    "property": (lambda: anyhow(lambda: Learner().size), "AttributeError", "Learner.size"),
    "generator": (lambda: anyhow(lambda: [*Learner().items()]), "IndexError", "Learner.items"),
    "task": (as_task, "TypeError", "Learner.answer"),
    "callback": (as_callback, "KeyError", "Learner.__call__"),
    "callback in a thread": (in_a_thread, "KeyError", "Learner.__call__"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_caught_exception_has_its_line(name: str) -> None:
    run, error, function = CASES[name]
    with caught.watching({__file__}) as found:
        run()
    assert [(each["error"], each["frames"]) for each in found] == [
        (error, [(__file__, line_of(name.partition(" ")[0]), function)])
    ]


@pytest.mark.parametrize("name", ["refuse", "handle", "poll"])
def test_what_is_raised_on_purpose_or_handled_at_home_is_no_slip(name: str) -> None:
    with caught.watching({__file__}) as found:
        anyhow(getattr(Learner(), name))
    assert found == []


def test_other_files_are_not_looked_at() -> None:
    with caught.watching({"labs/03-scheduler/scheduler.py"}) as found:
        anyhow(lambda: Learner().size)
    assert found == []
