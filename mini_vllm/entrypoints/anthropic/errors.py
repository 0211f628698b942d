"""Errors in Anthropic's format, for all routes below ``/v1/messages``.

::

    {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens is ..."}}

Source: vllm/entrypoints/anthropic/api_router.py#L36-L45 (translate_error_response) @ v0.22.1
"""

from __future__ import annotations

from typing import Any

import orjson
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATH = "/v1/messages"
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's error types by status; other 4xx errors are an "invalid_request_error"."""


def error_body(status: int, message: str) -> dict[str, Any]:
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


class AnthropicErrors:
    """Converts all errors below ``/v1/messages``, from any layer, to Anthropic's format."""

    def __init__(self, app: ASGIApp, root_path: str = "") -> None:
        self.app, self.path = app, root_path + PATH

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith((PATH, self.path)):
            await self.app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def translate(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and message["status"] >= 400:
                start = message
                return
            if start is None:
                await send(message)
                return
            body += message.get("body", b"")
            if message.get("more_body"):
                return
            data = _translated(start["status"], body)
            MutableHeaders(raw=start["headers"])["content-length"] = str(len(data))
            await send(start)
            await send({"type": "http.response.body", "body": data})

        await self.app(scope, receive, translate)


def _translated(status: int, body: bytes) -> bytes:
    """The body of an error in Anthropic's format; a body in an unknown format is not changed."""
    try:
        message = orjson.loads(body)["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body
    return orjson.dumps(error_body(status, message))
