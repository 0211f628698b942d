"""Anthropic's own client on ``/v1/messages``: texts, thoughts, tools, streams and errors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.entrypoints.scripted import scripted

anthropic = pytest.importorskip("anthropic", reason="the package anthropic is not installed")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
WEATHER: Any = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ASK: Any = {"model": "m", "max_tokens": 900, "messages": [{"role": "user", "content": "Rain?"}]}


def client_of(*script: str, **options: Any) -> tuple[Any, Any]:
    """Its client, with the server's test client for a wire; and the engine."""
    wire, engine = scripted(*script, **options)
    url = str(wire.base_url)
    return anthropic.Anthropic(
        base_url=url, api_key="none", http_client=wire, max_retries=0
    ), engine


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_is_read(stream: bool) -> None:
    script = f"<think>Hm</think>I look. {CALL}", "It is dry."
    client, engine = client_of(*script, structured={"reasoning_parser": "qwen3"})

    def say(**more: Any) -> Any:
        if not stream:
            return client.messages.create(**ASK | more)
        with client.messages.stream(**ASK | more) as events:
            kinds = {event.type for event in events}
            assert {"message_start", "content_block_start", "message_stop"} <= kinds
            return events.get_final_message()

    first = say(tools=[WEATHER])
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    thought, text, call = first.content
    assert (thought.thinking, text.text.strip()) == ("Hm", "I look.")
    assert (call.name, call.input, first.stop_reason) == ("weather", {"city": "Oslo"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "No rain."}
    messages = [
        *ASK["messages"],
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {"role": "user", "content": [result]},
    ]
    second = say(
        tools=[WEATHER], messages=messages, thinking={"type": "disabled"}, system="Be brief."
    )
    assert [(block.type, block.text) for block in second.content] == [("text", "It is dry.")]
    assert second.stop_reason == "end_turn" and second.usage.output_tokens > 0
    assert "No rain." in engine.prompts[1] and "Be brief." in engine.prompts[1]


def test_tokens_are_counted_and_errors_have_their_class() -> None:
    client, _ = client_of("a")
    assert client.messages.count_tokens(model="m", messages=ASK["messages"]).input_tokens > 5
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**ASK | {"model": "another"})
    with pytest.raises(anthropic.BadRequestError, match="role"):
        client.messages.create(**ASK | {"messages": [{"role": "king", "content": "a"}]})
