"""Bodies of requests: limits of size and time, and how the rest of a body is dropped.

A client often reads nothing before it has sent its whole body. If the server answers early and
closes the connection, the connection is reset and the client never sees the answer. So the server
sends an answer as soon as it is known, and reads and drops the rest of the body.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from http import HTTPStatus
from typing import Any

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mini_vllm.entrypoints.openai.errors import APIError

MAX_BODY_BYTES = 32 * 2**20
"""Largest body that is read."""
BODY_SECONDS = 30.0
"""How long a body may take; a second more is allowed for each ``BYTES_A_SECOND``."""
BYTES_A_SECOND = 2**15
REST_BYTES, REST_SECONDS = 8 * MAX_BODY_BYTES, 30.0
"""How much is read and dropped, and for how long, of a body that is no longer needed."""
HURRIED = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.SERVICE_UNAVAILABLE)
MOST_MARKS = {b",": 2**20, b":": 2**17, b"[": 2**17, b"{": 2**17}
"""Most values, members, lists and objects of a body. Each becomes a Python object, and other
requests wait while millions of them are made. One long text has few."""


async def read_body(request: Request) -> dict[str, Any]:
    """The JSON object in the body. Raises APIError (400, 408 or 413) if there is none."""
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind != "application/json":
        raise APIError(f"content-type is {kind!r}; send application/json")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise APIError(f"content-encoding is {coding!r}; send the body as it is")
    data = await _read_bytes(request)
    for mark, most in MOST_MARKS.items():
        if (count := data.count(mark)) > most:
            raise APIError(
                f"the body holds {mark.decode()!r} {count:,} times; at most {most:,} are read, "
                "because other requests wait meanwhile; send several smaller requests"
            )
    try:
        value = orjson.loads(data.removeprefix(codecs.BOM_UTF8))  # some Windows programs begin so
    except orjson.JSONDecodeError as error:
        too_deep = "depth" in str(error)  # the rest of the message differs between releases
        why = "it nests too deep, more than 1,024 levels" if too_deep else error
        raise APIError(f"the body is not valid JSON: {why}") from error
    if not isinstance(value, dict):
        raise APIError(f"the body is a JSON {type(value).__name__}; it must be an object")
    return value


async def _read_bytes(request: Request) -> bytes:
    """Raises APIError for a body that is too large, as soon as that is known, or too slow."""
    declared = request.headers.get("content-length", "")
    _check_size(int(declared) if declared.isdecimal() else 0)
    chunks: list[bytes] = []
    size = 0
    begin, stream = asyncio.get_running_loop().time(), request.stream()
    try:
        while True:
            async with asyncio.timeout_at(begin + BODY_SECONDS + size / BYTES_A_SECOND):
                chunk = await anext(stream, None)
            if chunk is None:
                return b"".join(chunks)
            chunks.append(chunk)
            size += len(chunk)
            _check_size(size)
    except TimeoutError:
        raise APIError(
            f"{size:,} bytes of the body had arrived when its time was over: {BODY_SECONDS:.0f} "
            f"seconds, and one more for each {BYTES_A_SECOND:,} bytes; send it faster, or less",
            HTTPStatus.REQUEST_TIMEOUT,
        ) from None


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise APIError(
            f"the body is larger than {MAX_BODY_BYTES} bytes; send less",
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        )


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


class DropTheRest:
    """Makes answers reach the client even if they are sent before the whole body is read.

    The rest of the body is read and dropped, up to ``REST_BYTES`` and ``REST_SECONDS``. This
    happens after the last byte of the answer and before its end, because the server gets no events
    of a request after that. Then the connection is closed: it is not known where the next request
    begins. The rest is not waited for if the client has asked first (``Expect: 100-continue``) and
    so sends nothing more, if the client was too slow, or during a shutdown.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(headers := Headers(scope=scope)):
            await self.app(scope, receive, send)
            return
        is_unread, asks_first, hangs_up = True, "expect" in headers, False

        async def receive_and_note() -> Message:
            nonlocal is_unread, asks_first
            asks_first = False
            message = await receive()
            is_unread = bool(message.get("more_body"))
            return message

        async def send_and_drop(message: Message) -> None:
            nonlocal hangs_up
            if is_unread and message["type"] == "http.response.start":
                MutableHeaders(raw=message["headers"])["connection"] = "close"
                hangs_up = asks_first or message["status"] in HURRIED
            elif is_unread and not message.get("more_body") and not hangs_up:
                await send({**message, "more_body": True})
                await _drop(receive)
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        await self.app(scope, receive_and_note, send_and_drop)


async def _drop(receive: Receive) -> None:
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REST_SECONDS):
            while size < REST_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return
