"""Change request 3, on random answers: read as Anthropic's client reads them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

NAMES = {"thinking": "thinking", "text": "text", "tool_use": "partial_json"}


def drawn(rng: Random) -> list[dict[str, Any]]:
    """Pieces of an answer: kinds in any order, calls with ids of their own, texts of any kind."""
    pieces: list[dict[str, Any]] = []
    for number in range(rng.randint(0, 6)):
        kind = rng.choice(["thinking", "text", "tool_use"])
        more = {"id": f"c{number}", "name": rng.choice("fg")} if kind == "tool_use" else {}
        for _ in range(rng.randint(1, 3)):
            text = rng.choice(["", "a", "é\n", 'data: "x"\n\n', "{"])
            pieces.append({"type": kind, **more, "text": text})
    return pieces


def read(events: list[bytes]) -> tuple[list[dict[str, Any]], list[tuple[str, Any]]]:
    """The blocks, and what else was told, with all rules of the stream checked."""
    blocks: list[dict[str, Any]] = []
    told: list[tuple[str, Any]] = []
    open_block = False
    for event in events:
        assert event.endswith(b"\n\n") and event.count(b"\n") == 3
        name, data = event.decode().strip().split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        if body["type"] == "content_block_start":
            assert not open_block and body["index"] == len(blocks)
            blocks.append(body["content_block"] | {"said": ""})
            open_block = True
        elif body["type"] == "content_block_delta":
            block = blocks[body["index"]]
            assert open_block and body["index"] == len(blocks) - 1
            key = NAMES[block["type"]]
            kind = "input_json" if block["type"] == "tool_use" else block["type"]
            assert body["delta"].keys() == {"type", key} and body["delta"][key]
            assert body["delta"]["type"] == f"{kind}_delta"
            block["said"] += body["delta"][key]
        elif body["type"] == "content_block_stop":
            assert open_block and body["index"] == len(blocks) - 1
            open_block = False
        else:
            assert not open_block or body["type"] == "error"
            told.append((body.pop("type"), body))
    return blocks, told


@pytest.mark.parametrize("seed", range(40))
def test_change_3_any_answer(seed: int) -> None:
    from mini_vllm.entrypoints.openai.sse import message_events

    rng = Random(seed)
    pieces = drawn(rng)
    fails = rng.random() < 0.3
    end = {"type": "end", "stop_reason": rng.choice(["end_turn", "max_tokens"]), "output_tokens": 7}
    closed = []

    async def source() -> AsyncIterator[dict[str, Any]]:
        try:
            for piece in pieces:
                yield piece
            if fails:
                raise RuntimeError(f"seed {seed}")
            yield end
        finally:
            closed.append(True)

    async def collect() -> list[bytes]:
        return [event async for event in message_events({"id": seed}, source())]

    blocks, told = read(asyncio.run(collect()))
    wanted: list[dict[str, Any]] = []
    keys = [(piece["type"], piece.get("id")) for piece in pieces]
    for number, piece in enumerate(pieces):
        if number == 0 or keys[number] != keys[number - 1]:
            kind = piece["type"]
            empty = {"input": {}} if kind == "tool_use" else {kind: ""}
            more = {key: piece[key] for key in ("id", "name") if key in piece}
            wanted.append({"type": kind, **more, **empty, "said": ""})
        wanted[-1]["said"] += piece["text"]
    assert blocks == wanted
    first = ("message_start", {"message": {"id": seed}})
    if fails:
        error = {"type": "api_error", "message": f"seed {seed}"}
        assert told == [first, ("error", {"error": error})]
    else:
        delta = {"delta": {"stop_reason": end["stop_reason"]}, "usage": {"output_tokens": 7}}
        assert told == [first, ("message_delta", delta), ("message_stop", {})]
    assert closed == [True]
