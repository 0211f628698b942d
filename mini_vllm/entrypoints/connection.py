"""Connections with a time limit for the head of a request, for which uvicorn has none.

The head of a request is its first line and its headers. A client that sends it very slowly, or not
at all, keeps a file descriptor open; a few thousand of these would keep all other clients out.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Any

from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.extras import from_extra

with from_extra("serve", "the HTTP server"):
    import orjson
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 60.0
"""Most seconds for the head of a request, from its first byte or the start of the connection."""

_TO_HTTP_2 = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n)", re.IGNORECASE)
"""An offer to continue in HTTP/2, which some clients (Vert.x) send with their first request. A
server may ignore it, but httptools assumes that such a request has no body, and drops the body."""

_Auto: Any = AutoHTTPProtocol


class PromptConnection(_Auto):
    """uvicorn's connection with limits of time and size for the head of each request.

    ``cycle`` is the current request, or the one before until the head is complete.
    """

    _timer: asyncio.TimerHandle | None = None
    _num_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if b"h2c" in data and (self.cycle is None or self.cycle.response_complete):
            head, end, body = data.partition(b"\r\n\r\n")
            data = _TO_HTTP_2.sub(b"", head + b"\r\n").removesuffix(b"\r\n") + end + body
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._end()
            return
        if self._timer is None:
            self._begin()
        self._num_bytes += len(data)
        most = self.config.h11_max_incomplete_event_size
        if self._num_bytes > most:
            self._refuse(
                f"the headers have more than {most:,} bytes",
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            )

    def send_400_response(self, msg: str) -> None:
        self._refuse(f"this is no HTTP/1.1 request: {msg}", HTTPStatus.BAD_REQUEST)

    def _begin(self) -> None:
        self._timer, self._num_bytes = self.loop.call_later(HEAD_SECONDS, self._too_late), 0

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        if not self._num_bytes:  # opened in advance: no client waits for an answer
            self.transport.close()
            return
        text = f"the headers did not arrive within {HEAD_SECONDS:.0f} seconds"
        self._refuse(text, HTTPStatus.REQUEST_TIMEOUT)

    def _refuse(self, text: str, status: HTTPStatus) -> None:
        """Send an error without a request, and close the connection."""
        if self.transport.is_closing():
            return
        body = orjson.dumps(APIError(text, status).body())
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
