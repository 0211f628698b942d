"""The wire: streams that break, clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from labkit.inside.serving.turns import SPINS, how_ended, named, run, turns


def send_stream(
    events: int, error: str = "", fails_at: int = -1, done: str = "data: [DONE]\n\n"
) -> dict[str, Any]:
    """What an EventStream sends of so many events, when making one fails, or sending one.

    `error`: "value", "busy" (an APIError, 503), "bug", "gone" (OSError; "lost" is another one) or
    "cancel", raised where event number `fails_at` would be made; "send": sending the message of
    that number fails.
    """
    from mini_vllm.entrypoints.openai.errors import APIError
    from mini_vllm.entrypoints.openai.sse import EventStream

    errors: dict[str, BaseException] = {
        "value": ValueError("temperature is -1"), "busy": APIError("full", 503),
        "bug": KeyError("x"), "gone": ConnectionResetError("reset"),
        "lost": OSError("no route to the host"), "cancel": asyncio.CancelledError(),
    }  # fmt: skip
    diary: list[Any] = []

    async def make() -> AsyncIterator[bytes]:
        try:
            for number in range(events):
                if number == fails_at and error in errors:
                    raise errors[error]
                diary.append(["made", number])
                yield b"data: %d\n\n" % number
            if fails_at >= events and error in errors:
                raise errors[error]
        finally:
            diary.append(["closed"])

    async def go() -> dict[str, Any]:
        how = await end_of_stream()
        return {"diary": list(diary), "how": how}  # now: the loop's own end closes what was left

    async def end_of_stream() -> str:
        stream = EventStream(make(), lambda: None, done=done.encode())
        count = [0]

        async def send(message: Any) -> None:
            if error == "send" and count[0] == fails_at:
                raise ConnectionResetError("reset")
            count[0] += 1
            if message["type"] == "http.response.start":
                headers = {name.decode(): value.decode() for name, value in message["headers"]}
                kept = {k: headers.get(k) for k in ("content-type", "content-length")}
                diary.append(["start", message["status"], kept])
            else:
                body = bytes(message["body"]).decode()
                diary.append(["sent", body, bool(message.get("more_body", False))])

        try:
            await stream._send_all(send)
        except BaseException as problem:
            return named(problem).partition(":")[0]
        return "returned"

    return dict(run(go()))


def race(
    work: int, gone: int, *, fails: bool = False, cleanup: int = 0, cancelled: int = -1
) -> dict[str, Any]:
    """Work that takes so many turns beside a client that leaves after so many (-1: never).

    `fails`: the work raises. `cleanup`: turns that it needs once it is cancelled. `cancelled`:
    turns after which the task that waits for the race is cancelled.
    """
    from mini_vllm.entrypoints.openai.sse import ClientGoneError, with_cancellation

    diary: list[str] = []

    async def working() -> str:
        try:
            for _ in range(work):
                await asyncio.sleep(0)
            if fails:
                raise KeyError("the work's own")
            return "answer"
        except asyncio.CancelledError:
            await turns(cleanup)
            diary.append("work cancelled and cleaned up")
            raise

    async def go() -> str:
        count = [0]

        async def receive() -> dict[str, str]:
            count[0] += 1
            if count[0] == 1:
                return {"type": "http.request"}
            try:
                if gone < 0:
                    await asyncio.Event().wait()
                for _ in range(gone):
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                diary.append("listening ended")
                raise
            return {"type": "http.disconnect"}

        task = asyncio.ensure_future(with_cancellation(receive, working()))  # type: ignore[arg-type]
        if cancelled >= 0:
            await turns(cancelled)
            task.cancel()
        for _ in range(SPINS):
            if task.done():
                break
            await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task(), task}
        left = len([one for one in others if not one.done()])
        diary.append(f"{left} tasks left")
        for one in (*others, task):
            one.cancel()
        await turns(3)
        return how_ended(task, ClientGoneError)

    how = run(go())
    return {"how": how, "diary": sorted(diary)}


def listen(kinds: Sequence[str]) -> dict[str, Any]:
    """How many messages are read until the listener is content."""
    from mini_vllm.entrypoints.openai.sse import listen_for_disconnect

    read = [0]

    async def receive() -> dict[str, str]:
        if read[0] == len(kinds):
            await asyncio.Event().wait()
        read[0] += 1
        return {"type": kinds[read[0] - 1]}

    async def go() -> bool:
        task = asyncio.ensure_future(listen_for_disconnect(receive))  # type: ignore[arg-type]
        await turns(3 * len(kinds) + 5)
        done = task.done()
        if done:
            task.result()
        task.cancel()
        return done

    return {"done": run(go()), "read": read[0]}
