"""Change request 3: an agent that reads Anthropic's stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from labkit.testing import expect

HEAD: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 0},
}
END = {"type": "end", "stop_reason": "end_turn", "output_tokens": 9}


def thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "text": text}


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def call(text: str, call_id: str = "c1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "weather", "text": text}


def sent(*pieces: Any, closed: list[str] | None = None) -> list[bytes]:
    """All events; a piece that is an error is raised in its place."""
    from mini_vllm.entrypoints.openai.sse import message_events

    async def source() -> AsyncIterator[dict[str, Any]]:
        try:
            for piece in pieces:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            if closed is not None:
                closed.append("closed")

    async def collect() -> list[bytes]:
        return [event async for event in message_events(dict(HEAD), source())]

    return asyncio.run(collect())


def short(events: list[bytes]) -> list[tuple[Any, ...]]:
    """Name, number of the block, and what is new in it."""
    found = []
    for event in events:
        name, data = event.decode().removesuffix("\n\n").split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body.pop('type')}", event
        new = body.get("content_block") or body.get("delta") or body.get("error")
        index = (body["index"],) if "index" in body else ()
        found.append((name.removeprefix("event: "), *index, *([new] if new else [])))
    return found


def started(index: int, **block: Any) -> tuple[Any, ...]:
    return ("content_block_start", index, block)


def added(index: int, kind: str, name: str, piece: str) -> tuple[Any, ...]:
    return ("content_block_delta", index, {"type": kind, name: piece})


LAST = [("message_delta", {"stop_reason": "end_turn"}), ("message_stop",)]


def test_change_3_the_form_of_an_event() -> None:
    """A name, the data, an empty line; the data have the name, too."""
    body = json.dumps({"type": "message_start", "message": HEAD}, separators=(",", ":"))
    expect(sent(END)[0], f"event: message_start\ndata: {body}\n\n".encode(), at="the first event")


def test_change_3_a_text_in_two_pieces() -> None:
    """One block: it goes on while the kind is the same."""
    expected = [
        ("message_start",),
        started(0, type="text", text=""),
        added(0, "text_delta", "text", "I lo"),
        added(0, "text_delta", "text", "ok."),
        ("content_block_stop", 0),
        *LAST,
    ]
    expect(short(sent(text("I lo"), text("ok."), END)), expected, at='text "I lo", text "ok."')


def test_change_3_a_thought_a_text_and_two_calls() -> None:
    """Each block ends before the next begins; a call with another id is another block."""
    pieces = [thinking("Hm"), text("So"), call('{"a'), call('":1}'), call("{}", "c2"), END]
    ask = {"type": "tool_use", "name": "weather", "input": {}}
    expected = [
        ("message_start",),
        started(0, type="thinking", thinking=""),
        added(0, "thinking_delta", "thinking", "Hm"),
        ("content_block_stop", 0),
        started(1, type="text", text=""),
        added(1, "text_delta", "text", "So"),
        ("content_block_stop", 1),
        started(2, **ask, id="c1"),
        added(2, "input_json_delta", "partial_json", '{"a'),
        added(2, "input_json_delta", "partial_json", '":1}'),
        ("content_block_stop", 2),
        started(3, **ask, id="c2"),
        added(3, "input_json_delta", "partial_json", "{}"),
        ("content_block_stop", 3),
        *LAST,
    ]
    expect(short(sent(*pieces)), expected, at="a thought, a text, two calls")


def test_change_3_an_answer_without_blocks() -> None:
    """The head and the end."""
    expect(short(sent(END)), [("message_start",), *LAST], at="no pieces")


def test_change_3_an_empty_text() -> None:
    """It begins a block, and brings no delta."""
    expected = [("message_start",), started(0, type="text", text=""), ("content_block_stop", 0)]
    expect(short(sent(text(""), END)), [*expected, *LAST], at="an empty text")


def test_change_3_what_goes_wrong_is_the_last_event() -> None:
    """An error after the first text: nothing follows it, and the pieces are closed."""
    closed: list[str] = []
    events = short(sent(text("a"), ValueError("no room"), closed=closed))
    error = ("error", {"type": "api_error", "message": "no room"})
    expect(events[-1], error, at="the last event")
    expect(events[:-1], short(sent(text("a"), END))[:3], at="the events before it")
    expect(closed, ["closed"], at="the iterator of pieces")


@pytest.mark.parametrize("error", [OSError("gone"), asyncio.CancelledError()])
def test_change_3_a_reader_that_is_gone(error: BaseException) -> None:
    """Raised on: there is no reader left to be told."""
    try:
        events: Any = short(sent(text("a"), error))
    except (OSError, asyncio.CancelledError) as raised:
        events = type(raised).__name__
    expect(events, type(error).__name__, at=f"the pieces raise {type(error).__name__}")


if find_spec("anthropic"):

    def test_change_3_the_real_client_reads_it() -> None:
        """Anthropic's own client makes a message of the events; judged where it is installed."""
        import anthropic

        httpx = import_module("httpx2" if find_spec("httpx2") else "httpx")  # whichever it is on
        body = b"".join(sent(thinking("Hm"), text("So"), call('{"city"'), call(': "Oslo"}'), END))
        headers = {"content-type": "text/event-stream"}
        transport = httpx.MockTransport(
            lambda ask: httpx.Response(200, content=body, headers=headers)
        )
        client = anthropic.Anthropic(
            base_url="http://lab", api_key="none", http_client=httpx.Client(transport=transport)
        )
        ask: Any = {
            "model": "m",
            "max_tokens": 50,
            "messages": [{"role": "user", "content": "Rain?"}],
        }
        with client.messages.stream(**ask) as stream:
            message = stream.get_final_message()
        blocks = [block.type for block in message.content]
        expect(blocks, ["thinking", "text", "tool_use"], at="types of the blocks")
        expect(message.content[2].input, {"city": "Oslo"}, at="the input of the call")
        expect(message.usage.output_tokens, 9, at="output tokens")
