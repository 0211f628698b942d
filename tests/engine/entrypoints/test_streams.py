"""Streams that break: what the server writes to its log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server is an extra")


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [(KeyError("x"), True), (ValueError("temperature is -1"), False)],
    ids=["a mistake of ours", "a mistake of the client's"],
)
def test_only_mistakes_of_ours_are_logged(
    error: Exception, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The client is told of both; the status has left long ago, so the log is all there is."""
    from mini_vllm.entrypoints.openai.sse import EventStream

    sent: list[MutableMapping[str, Any]] = []

    async def make() -> AsyncIterator[bytes]:
        yield b"data: 0\n\n"
        raise error

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(EventStream(make(), lambda: None)._send_all(send))
    assert [message["type"] for message in sent] == ["http.response.start"] + 3 * [
        "http.response.body"
    ]
    assert [record.levelname for record in caplog.records] == ["ERROR"] * is_logged
