"""Server-sent events: streamed answers, and how they end when the client disconnects.

::

    data: {"choices":[{"text":"Once"}]}⏎⏎      one event a piece
    data: {"error":{...}}⏎⏎                    the status is sent already, so errors are events
    data: [DONE]⏎⏎                             always the last
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mini_vllm.entrypoints.openai.errors import as_api_error

logger = logging.getLogger(__name__)
T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


def sse_event(body: Any) -> bytes:
    """One event: ``data: ``, the body as JSON, and an empty line.

    JSON writes line breaks as ``\\n``, so an event is one line, whatever text it holds.

    Args:
        body: plain data, as JSON knows it. JSON has no NaN and no infinity: they become null (the
            log probability of a forbidden token is -inf).
    """
    # TODO 14.7
    raise NotImplementedError(
        "TODO 14.7: write sse_event in labs/14-serving/sse.py"
        " (phase 14, 02-mini-build.md#task-7)"
    )


class ClientGoneError(Exception):
    """The client has disconnected."""


async def listen_for_disconnect(receive: Receive) -> None:
    """Returns when the client has closed its connection; the body must have been read.

    ASGI tells it by a message of type "http.disconnect". Whatever else comes is passed over.

    Source: vllm/entrypoints/utils.py#L45-L54 (listen_for_disconnect) @ v0.22.1
    """
    # TODO 14.8
    raise NotImplementedError(
        "TODO 14.8: write listen_for_disconnect in labs/14-serving/sse.py"
        " (phase 14, 02-mini-build.md#task-8)"
    )


async def with_cancellation(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``, unless the client leaves first: then it is cancelled, and waited for.

    Servers cancel streaming answers only; other handlers run to their end when the client is gone.
    So two tasks race, ``work`` and :func:`listen_for_disconnect`. The loser is cancelled, and
    this function returns only when both have ended: ``work`` may have to clean up. If both are
    done at once, the work counts. If this function itself is cancelled, both are, too. The race
    takes as long as it takes: an answer may need minutes.

    Returns:
        What ``work`` returns; what it raises is raised here.

    Raises:
        ClientGoneError: if the client has left before.

    Source: vllm/entrypoints/utils.py#L57-L99 (with_cancellation) @ v0.22.1
    """
    # TODO 14.8
    raise NotImplementedError(
        "TODO 14.8: write with_cancellation in labs/14-serving/sse.py"
        " (phase 14, 02-mini-build.md#task-8)"
    )


class EventStream(Response):
    """An answer whose events are sent while they are made.

    Args:
        events: encoded events, without the last one, ``[DONE]``.
        close: called at the end, even if no event was read; it ends the request.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        close: Callable[[], None],
        headers: dict[str, str] | None = None,
        done: bytes = DONE,
    ) -> None:
        self.events, self.close, self.done = events, close, done
        self.status_code, self.background = 200, None
        self.body = b""
        self.init_headers({"cache-control": "no-cache", **(headers or {})})
        if "content-length" in self.headers:
            del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientGoneError, OSError):
                await with_cancellation(receive, self._send_all(send))
        finally:
            self.close()

    async def _send_all(self, send: Send) -> None:
        """Send the head, each event as soon as it is there, and ``self.done`` at the end.

        ASGI: a message "http.response.start" with the status and ``self.raw_headers``, then
        messages "http.response.body", all but the last with ``more_body``. The status is gone
        before the first event is made, so an error becomes an event of its own
        (:func:`~.errors.as_api_error`), and ``self.done`` follows all the same. A reader that is
        gone (any OSError) or this task being cancelled is no error of the stream: both are raised
        on, with nothing sent. The events' iterator is closed in every case.

        Source: vllm/entrypoints/openai/completion/serving.py#L278-L480
        (OpenAIServingCompletion.completion_stream_generator) @ v0.22.1
        """
        # TODO 14.7
        raise NotImplementedError(
            "TODO 14.7: write EventStream._send_all in labs/14-serving/sse.py"
            " (phase 14, 02-mini-build.md#task-7)"
        )


async def merge(iterators: Sequence[AsyncIterator[T]]) -> AsyncIterator[tuple[int, T]]:
    """Items of several iterators as they arrive, each with the index of its iterator."""
    if len(iterators) == 1:
        async with contextlib.aclosing(iterators[0]) as only:  # type: ignore[type-var]
            async for item in only:
                yield 0, item
        return
    pending = {asyncio.ensure_future(_next(source)): i for i, source in enumerate(iterators)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = pending.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    continue
                pending[asyncio.ensure_future(_next(iterators[index]))] = index
                yield index, item
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _next(source: AsyncIterator[T]) -> T:
    return await source.__anext__()


Handler = Callable[[Request], Awaitable[Response]]
