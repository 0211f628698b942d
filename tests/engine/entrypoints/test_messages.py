"""``/v1/messages``: what Anthropic's client sends and reads, in its own words."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from mini_vllm.entrypoints.anthropic.conversation import chat_of
from mini_vllm.entrypoints.anthropic.messages import block_of
from mini_vllm.entrypoints.anthropic.protocol import MessagesRequest
from mini_vllm.entrypoints.openai.api_server import check_body
from mini_vllm.entrypoints.openai.errors import APIError
from tests.engine.entrypoints.scripted import scripted

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
WEATHER: Any = {
    "name": "weather", "description": "of a city", "cache_control": {"type": "ephemeral"},
    "input_schema": {"properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip
ASK: Any = {"model": "m", "max_tokens": 900, "messages": [{"role": "user", "content": "Rain?"}]}
QWEN3 = {"reasoning_parser": "qwen3"}


def ask(client: Any, **more: Any) -> dict[str, Any]:
    """The message of an answer; of a stream, its events folded as the client folds them."""
    answer = client.post("/v1/messages?beta=true", json=ASK | more)
    assert answer.status_code == 200, answer.text
    return fold(answer.text) if more.get("stream") else answer.json()


def fold(text: str) -> dict[str, Any]:
    events = []
    for one in text.strip().split("\n\n"):
        kind, data = one.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {events[-1]['type']}"
    first, ping, *middle, change, last = events
    assert (first["type"], ping["type"], last["type"]) == ("message_start", "ping", "message_stop")
    message = first["message"]
    assert message["content"] == [] and message["usage"]["output_tokens"] == 0
    for event in middle:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            written = ""
            continue
        block = message["content"][event["index"]]
        assert event["index"] == len(message["content"]) - 1  # each ends before the next begins
        if event["type"] == "content_block_stop":
            if block["type"] == "tool_use":
                block["input"] = json.loads(written or "{}")
            continue
        ((_, kind), (name, piece)) = event["delta"].items()
        assert piece and kind in ("text_delta", "thinking_delta", "input_json_delta",
                                  "signature_delta")  # fmt: skip
        if name == "partial_json":
            written += piece
        else:
            block[name] = block.get(name, "") + piece
    return message | change["delta"] | {"usage": change["usage"]}


def shown(message: dict[str, Any]) -> list[tuple[str, Any]]:
    """Its blocks, without what is drawn, and why it ended."""
    told = {"text": "text", "thinking": "thinking", "tool_use": "input"}
    blocks = [(block["type"], block[told[block["type"]]]) for block in message["content"]]
    return [*blocks, ("end", message["stop_reason"])]


@pytest.mark.parametrize(
    ("parser", "budget", "wanted"),
    [("qwen3", 90, 90), ("qwen3", 900, None), ("qwen3", None, None), ("", 90, None)],
)
def test_the_budget_of_a_thought(parser: str, budget: int | None, wanted: int | None) -> None:
    client, engine = scripted("Yes", structured={"reasoning_parser": parser})
    ask(client, thinking={"type": "enabled", "budget_tokens": budget})
    assert engine.params[-1].thinking_token_budget == wanted
    bad = ASK | {"thinking": {"type": "enabled", "budget_tokens": "many"}}
    answer = client.post("/v1/messages", json=bad)
    assert answer.status_code == 400 and "budget_tokens is 'many'" in answer.text


@pytest.mark.parametrize("stream", [False, True])
def test_texts_thoughts_and_calls(stream: bool) -> None:
    text = f"<think>Hm 日</think>I look. {CALL} {CALL}"
    script = [text, "no thought", "Yes", "", "ab END c"]
    client, engine = scripted(*script, structured=QWEN3)
    message = ask(client, stream=stream, tools=[WEATHER])
    calls = [("tool_use", {"city": "Oslo"})] * 2
    assert shown(message) == [("thinking", "Hm 日"), ("text", "I look. "), *calls,
                              ("end", "tool_use")]  # fmt: skip
    assert message["role"] == "assistant" and message["type"] == "message"
    assert message["id"].startswith("msg_") and message["model"] == "m"
    assert message["content"][0]["signature"] and message["content"][2]["name"] == "weather"
    assert len({block["id"] for block in message["content"][2:]}) == 2
    prompt = len(engine.prompts[0].replace("<|turn|>", "T").encode())
    assert message["usage"] == {"input_tokens": prompt, "output_tokens": len(text.encode())}
    assert shown(ask(client, stream=stream)) == [("thinking", "no thought"), ("end", "end_turn")]
    quiet = {"stream": stream, "thinking": {"type": "disabled"}}
    assert shown(ask(client, **quiet)) == [("text", "Yes"), ("end", "end_turn")]
    assert shown(ask(client, **quiet)) == [("end", "end_turn")]
    message = ask(client, **quiet, stop_sequences=["END"])
    assert shown(message) == [("text", "ab "), ("end", "stop_sequence")]
    assert message["stop_sequence"] == "END"


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_must_be_made_and_limits(stream: bool) -> None:
    script = ['{"city": "Rome"}', '[{"name": "weather", "parameters": {"city": "Oslo"}}]',
              '{"city": "Rome"}', "abc", "abc"]  # fmt: skip
    client, engine = scripted(*script, enable_prompt_tokens_details=True)
    of_tools: Any = {"tools": [WEATHER], "stream": stream}
    named = ask(client, **of_tools, tool_choice={"type": "tool", "name": "weather"})
    assert shown(named) == [("tool_use", {"city": "Rome"}), ("end", "tool_use")]
    single = {"type": "any", "disable_parallel_tool_use": True}
    assert shown(ask(client, **of_tools, tool_choice=single))[-1] == ("end", "tool_use")
    assert engine.params[1].structured_outputs.json["maxItems"] == 1
    if not stream:  # streamed, its JSON has no end either
        cut = ask(client, **of_tools, tool_choice={"type": "tool", "name": "weather"}, max_tokens=9)
        assert shown(cut) == [("tool_use", {}), ("end", "max_tokens")]
    else:
        client, _ = scripted("abc", enable_prompt_tokens_details=True)
    cut = ask(client, stream=stream, max_tokens=2)
    assert cut["stop_reason"] == "max_tokens" and cut["usage"]["cache_read_input_tokens"] == 0


def test_a_call_keeps_its_letters() -> None:
    """The model is shown what it wrote, and no escapes."""
    use = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Zürich 北京"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "dry"}
    messages = [*ASK["messages"], {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]}]  # fmt: skip
    chat = chat_of(MessagesRequest(**ASK | {"messages": messages}))
    (call,) = chat.messages[1]["tool_calls"]
    assert call["function"]["arguments"] == '{"city": "Zürich 北京"}'


def test_an_agent_of_several_turns() -> None:
    """What was answered goes back as it is, with the results of the tools."""
    texts = [f"<think>Hm</think>{CALL}", f"So</think>Again. {CALL}", "Ok</think>It is dry."]
    client, engine = scripted(*texts, structured=QWEN3)
    messages = list(ASK["messages"])
    while True:
        message = ask(client, stream=len(messages) == 1, messages=messages, tools=[WEATHER])
        messages.append({"role": "assistant", "content": message["content"]})
        uses = [block for block in message["content"] if block["type"] == "tool_use"]
        if not uses:
            break
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "dry"}
                   for use in uses]  # fmt: skip
        messages.append({"role": "user", "content": results})
    assert len(messages) == 6 and message["content"][-1]["text"] == "It is dry."
    (chat,) = [chat_of(MessagesRequest(**ASK | {"messages": messages[:-1]}))]
    told = [(m["role"], m.get("reasoning")) for m in chat.messages]
    assert told == [("user", None), ("assistant", "Hm"), ("tool", None), ("assistant", "So"),
                    ("tool", None)]  # fmt: skip
    assert '"reasoning_content": "So"' in engine.prompts[-1]


def test_what_a_request_means_as_a_chat() -> None:
    picture = base64.b64encode(b"x").decode()
    source = {"type": "base64", "media_type": "image/png", "data": picture}
    image = {"type": "image", "source": source}
    parts = [{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}]
    result = {"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": parts}
    redacted = {"type": "redacted_thinking", "data": "z"}
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
    request = MessagesRequest(
        **ASK
        | {
            "system": [{"type": "text", "text": "A."}, {"type": "text", "text": "B."},
                       {"type": "text", "text": "x-anthropic-billing-header: cc=1"}],
            "messages": [
                {"role": "assistant", "content": [redacted, call]},
                {"role": "user", "content": [result, {"type": "text", "text": "So?"}, image]},
                {"role": "assistant", "content": "It"},
            ],
            "temperature": 0.5, "top_k": 4, "top_p": 0.9, "stop_sequences": ["x"],
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
            "thinking": {"type": "enabled", "budget_tokens": 9}, "metadata": {"user_id": "u"},
        }
    )  # fmt: skip
    chat = chat_of(request)
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert chat.messages == [
        {"role": "system", "content": "A.B."},
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": "a\nb"},
        {"role": "user", "content": [url]},
        {"role": "user", "content": [{"type": "text", "text": "So?"}, url]},
        {"role": "assistant", "content": "It"},
    ]  # fmt: skip
    assert chat.continue_final_message and not chat.add_generation_prompt
    assert (chat.temperature, chat.top_k, chat.top_p, chat.stop) == (0.5, 4, 0.9, ["x"])
    assert chat.response_format == {"type": "json_schema", "json_schema": {"schema": {}}}
    assert chat.reasoning_effort == "low"
    assert chat.chat_template_kwargs == {"enable_thinking": True} and chat.max_tokens == 900


@pytest.mark.parametrize(
    "wrong, complaint",
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role is 'tool'"),
        ({"messages": [{"role": "system", "content": [{"type": "image"}]}]}, "a type of text"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content is 3"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "reads no PDF"),
        ({"messages": [{"role": "user", "content": [{"type": ["x"]}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking"}]}]}, "document, tool"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text is None"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "base64"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 3,
                                                     "tool_use_id": "c"}]}]}, "content is 3"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": 3}]}]},
         "input is 3"),
        ({"messages": [{"role": "assistant", "content": [
            {"type": "tool_use", "id": "c", "name": "f", "input": {}}]}]}, "ends with tool_use"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "no tools of its own"),
        ({"messages": [{"role": "user", "content": [
            {"type": "document", "source": {"type": "text", "data": "a"},
             "citations": {"enabled": True}}]}]}, "cannot cite"),
        ({"messages": [{"role": "user", "content": [
            {"type": "document", "source": {"type": "content"}}]}]}, "source.content is None"),
        ({"thinking": {"type": "much"}}, "thinking.type is 'much'"),
        ({"mcp_servers": [{"name": "m"}]}, "mcp_servers is not supported"),
        ({"container": "c"}, "container is not supported"),
        ({"output_format": {"type": "json_schema"}}, "send output_config"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
         "has the edit 'clear_tool_uses_20250919'"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema is None"),
        ({"tools": [WEATHER], "tool_choice": {"type": "maybe"}}, "tool_choice.type is 'maybe'"),
        ({"tools": [WEATHER], "tool_choice": {"type": ["any"]}}, "tool_choice.type is ['any']"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format is"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name is None"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(APIError) as error:
        chat_of(check_body(ASK | wrong, MessagesRequest))
    assert complaint in error.value.message and error.value.status == 400


def test_errors_have_anthropics_shape_wherever_they_arise() -> None:
    client, _ = scripted("a", api_keys=["k"])

    def kind(path: str, status: int, body: Any = None, **headers: str) -> str:
        answer = client.post(path, json=body or ASK, headers={"x-api-key": "k"} | headers)
        assert answer.status_code == status and answer.json()["type"] == "error", answer.text
        assert int(answer.headers["content-length"]) == len(answer.content)
        return answer.json()["error"]["type"]

    assert kind("/v1/messages", 401, **{"x-api-key": "no"}) == "authentication_error"
    assert kind("/v1/messages", 404, ASK | {"model": "claude"}) == "not_found_error"
    assert kind("/v1/messages/batches", 404) == "not_found_error"
    no_tools = ASK | {"tool_choice": {"type": "any"}}
    assert kind("/v1/messages", 400, no_tools) == "invalid_request_error"
    assert kind("/v1/messages", 400, ASK | {"max_tokens": 9000}) == "invalid_request_error"
    assert kind("/v1/messages", 400, **{"content-type": "text/xml"}) == "invalid_request_error"
    headers = {"content-length": str(2**30), "x-api-key": "k"}
    big = client.post("/v1/messages", content=b"", headers=headers)
    assert big.json()["error"]["type"] == "request_too_large"
    others = client.post("/v1/chat/completions", json={}, headers={"authorization": "Bearer k"})
    assert others.json()["error"]["code"] == 400
    bearer = {"authorization": "Bearer k"}
    assert client.post("/v1/messages", json=ASK, headers=bearer).status_code == 200


def test_an_error_in_a_stream_is_an_event() -> None:
    client, _ = scripted()
    answer = client.post("/v1/messages", json=ASK | {"stream": True})  # the script has ended
    assert answer.text.startswith('event: error\ndata: {"type":"error","error":{"type":"api_error"')


def test_tokens_are_counted_without_an_answer() -> None:
    client, engine = scripted("a")
    ask(client, system="Be brief.", tools=[WEATHER], tool_choice={"type": "none"})
    more = {"system": "Be brief.", "tools": [WEATHER], "tool_choice": {"type": "none"}}
    asked = {"model": "m", "messages": ASK["messages"]} | more
    counted = client.post("/v1/messages/count_tokens", json=asked).json()
    number = len(engine.prompts[0].replace("<|turn|>", "T").encode())
    assert counted == {"input_tokens": number,
                       "context_management": {"original_input_tokens": number}}  # fmt: skip
    assert len(engine.prompts) == 1


def test_a_call_that_was_cut_has_no_input() -> None:
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a'}
    assert block_of(item) == {"type": "tool_use", "id": "c", "name": "f", "input": {}}
