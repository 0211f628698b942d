"""Tools over HTTP: calls that a model makes of its own accord, and all of them on /v1/responses."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.entrypoints.openai.required_tools import parser_of
from mini_vllm.entrypoints.openai.response_items import messages_of, tools_of
from mini_vllm.entrypoints.openai.response_store import ResponseStore
from mini_vllm.entrypoints.openai.responses import Output
from tests.engine.entrypoints.server import Server, running

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
CLOCK: Any = {"type": "function", "name": "clock"}
IN_CHAT: Any = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "</tool_call>"}}\n</tool_call>'
TEXTS = [
    f"I look. {CALL}",
    f"{CALL}\n{CALL} So.",
    'I <tool_call>{"arguments": {"name": "x"}, "name": "clock"}</tool_call>',
    '<tool_call>{"name": "clock", "parameters": "{\\"a\\": 1}"}</tool_call>',
    'oh <tool_call>{"name": "clock", "arguments": oops}</tool_call>',
]
"""What a constraint makes the model write, which has learnt no format of calls."""
ASK: Any = {
    "model": "storyteller", "input": "Rain?", "tools": [WEATHER, CLOCK], "temperature": 0,
    "max_output_tokens": 90, "parallel_tool_calls": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("--enable-auto-tool-choice", "--tool-call-parser", "hermes") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any")


# ---------------------------------------------------------------------- chats


def test_of_allowed_tools_the_others_are_left_out(server: Server) -> None:
    tools = [*IN_CHAT, {"type": "function", "function": {"name": "clock"}}]
    ask = {"messages": [{"role": "user", "content": "Rain?"}], "max_tokens": 90, "temperature": 0}
    allowed: Any = {"mode": "required", "tools": tools[1:]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = server.post("/v1/chat/completions", tools=tools, tool_choice=choice, **ask).json()
    assert {c["function"]["name"] for c in answer["choices"][0]["message"]["tool_calls"]} == {
        "clock"
    }
    for wrong in ({"tools": []}, {"tools": [{"name": "clock"}]}, {}, {"tools": 3}):
        choice["allowed_tools"] = wrong
        answer = server.post("/v1/chat/completions", tools=tools, tool_choice=choice, **ask)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "tool_choice"


@pytest.mark.parametrize("text", TEXTS)
def test_a_chat_tells_whole_and_streamed_the_same(client: openai.OpenAI, text: str) -> None:
    ask: Any = {
        "model": "storyteller", "messages": [{"role": "user", "content": "Rain?"}],
        "tools": IN_CHAT, "max_tokens": 150,
        "extra_body": {"structured_outputs": {"choice": [text]}},
    }  # fmt: skip
    (whole,) = client.chat.completions.create(**ask).choices
    content, calls, reason = "", {}, None
    for chunk in client.chat.completions.create(stream=True, **ask):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reason = choice.finish_reason
        for change in choice.delta.tool_calls or []:
            name, arguments = calls.get(change.index, ("", ""))
            function: Any = change.function
            calls[change.index] = name + (function.name or ""), arguments + function.arguments
    told = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls]  # type: ignore[union-attr]
    assert (whole.message.content or "", told) == (content, list(calls.values()))
    assert whole.finish_reason == reason == ("tool_calls" if told else "stop")
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in told)


# ---------------------------------------------------------------------- responses


def shown(items: Any) -> list[tuple[Any, ...]]:
    """Items without their ids."""
    items = [item if isinstance(item, dict) else item.model_dump() for item in items]
    return [
        (item["content"][0]["text"], item["status"])
        if item["type"] == "message"
        else (item["name"], item["arguments"], item["status"])
        for item in items
    ]


def events_of(client: openai.OpenAI, **ask: Any) -> list[Any]:
    """A stream's events; each item's events come in their order and agree with its end."""
    events: list[Any] = list(client.responses.create(stream=True, **ask))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"] and kinds[-1] == "completed"
    final = events[-1].response
    rest = events[2:-1]
    for place, item in enumerate(final.output):
        count = next((i for i, e in enumerate(rest) if e.output_index != place), len(rest))
        of_item, rest = rest[:count], rest[count:]
        added, *middle, done = of_item
        assert added.type == "response.output_item.added" and added.item.status == "in_progress"
        assert done.type == "response.output_item.done" and done.item == item
        assert {e.item_id for e in middle} == {added.item.id} == {item.id}
        whole = item.arguments if item.type == "function_call" else item.content[0].text
        deltas = [e.delta for e in middle if e.type.endswith(".delta")]
        assert "".join(deltas) == whole and all(deltas)
        if item.type == "function_call":
            assert added.item.name == item.name and added.item.arguments == ""
            assert middle[-1].type == "response.function_call_arguments.done"
            assert middle[-1].arguments == whole
        else:
            assert added.item.content == [] and middle[0].type == "response.content_part.added"
            assert [e.type for e in middle[-2:]] == [
                "response.output_text.done", "response.content_part.done",
            ]  # fmt: skip
            assert middle[-2].text == middle[-1].part.text == whole
    assert not rest
    return events


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ("required", "weather"),
        ({"type": "function", "name": "weather"}, "weather"),
        ({"type": "allowed_tools", "mode": "required", "tools": [CLOCK]}, "clock"),
        ("auto", None),
        ("none", None),
    ],
)
def test_what_a_response_may_call(client: openai.OpenAI, choice: Any, name: str | None) -> None:
    answer = client.responses.create(tool_choice=choice, **ASK)
    streamed = events_of(client, tool_choice=choice, **ASK)[-1].response
    assert shown(streamed.output) == shown(answer.output) and answer.status == "completed"
    assert streamed.usage.output_tokens == answer.usage.output_tokens  # type: ignore[union-attr]
    if name is None:
        assert answer.output_text and len(answer.output) == 1
        return
    (call,) = answer.output
    assert call.type == "function_call" and call.name == name and call.call_id != call.id
    assert json.loads(call.arguments).keys() == ({"city"} if name == "weather" else set())
    assert answer.output_text == "" and answer.tools[0].name == "weather"  # type: ignore[union-attr]
    assert answer.parallel_tool_calls is False


def test_an_agents_other_tools_are_left_out(client: openai.OpenAI) -> None:
    others = [{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}]
    ask: Any = ASK | {"tools": [others[0], *ASK["tools"], others[1]]}
    answer = client.responses.create(tool_choice="required", **ask)
    assert [tool.type for tool in answer.tools] == ["function"] * len(ASK["tools"])
    assert shown(answer.output) == shown(
        client.responses.create(tool_choice="required", **ASK).output
    )
    with pytest.raises(openai.BadRequestError, match="no tools of its own"):
        client.responses.create(**ask | {"tools": others})


@pytest.mark.parametrize("text", TEXTS)
def test_a_response_tells_whole_and_streamed_the_same(client: openai.OpenAI, text: str) -> None:
    ask = ASK | {"parallel_tool_calls": True, "max_output_tokens": 150}
    ask |= {"extra_body": {"structured_outputs": {"choice": [text]}}}
    output = Output(parser_of("auto"))
    list(output.read(text, True))
    wanted = shown([output.close(place, False) for place in range(len(output.items))])
    assert shown(client.responses.create(**ask).output) == wanted
    assert shown(events_of(client, **ask)[-1].response.output) == wanted


def test_a_call_that_is_cut_says_so(client: openai.OpenAI) -> None:
    for choice in ("required", {"type": "function", "name": "weather"}):
        ask = ASK | {"max_output_tokens": 30 if choice == "required" else 5, "tool_choice": choice}
        answer = client.responses.create(**ask)
        assert shown(answer.output) == shown(events_of(client, **ask)[-1].response.output)
        assert answer.status == "incomplete" and answer.output[-1].status == "incomplete"  # type: ignore[union-attr]


def test_the_next_turn_is_the_same_however_it_is_sent(client: openai.OpenAI) -> None:
    first = client.responses.create(tool_choice="required", **ASK)
    (call,) = first.output
    told: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}  # type: ignore[union-attr]
    parts = told | {"output": [{"type": "input_text", "text": "sunny"}]}
    user: Any = {"role": "user", "content": "Rain?"}
    thought: Any = {"type": "reasoning", "id": "rs_1", "summary": []}
    ways: list[Any] = [
        {"previous_response_id": first.id, "input": [told]},
        {"input": [user, call.to_dict(), told]},
        {"input": [user, thought, {"type": "item_reference", "id": call.id}, parts]},
    ]
    answers = [client.responses.create(**ASK | way) for way in ways]
    assert len({answer.usage.input_tokens for answer in answers}) == 1  # type: ignore[union-attr]
    assert len({answer.output_text for answer in answers}) == 1
    assert answers[0].previous_response_id == first.id
    streamed = events_of(client, **ASK | ways[0])[-1].response
    again = client.responses.create(**ASK | {"previous_response_id": streamed.id, "input": "And?"})
    assert again.usage.input_tokens > answers[0].usage.input_tokens  # type: ignore[union-attr]


def test_a_response_is_kept_until_it_is_deleted(client: openai.OpenAI) -> None:
    ask = ASK | {"tools": [], "max_output_tokens": 5, "instructions": "Be short."}
    answer = client.responses.create(**ask)
    assert client.responses.retrieve(answer.id) == answer
    with pytest.raises(openai.BadRequestError, match="has ended"):
        client.responses.cancel(answer.id)
    client.responses.delete(answer.id)
    not_kept = client.responses.create(store=False, **ask)
    for response_id in (answer.id, not_kept.id):
        with pytest.raises(openai.NotFoundError, match="is not kept here"):
            client.responses.retrieve(response_id)
        with pytest.raises(openai.NotFoundError) as caught:
            client.responses.create(previous_response_id=response_id, **ask)
        assert caught.value.param == "previous_response_id"


def test_the_input_of_a_response_by_pages(client: openai.OpenAI, server: Server) -> None:
    ask = ASK | {"tools": [], "max_output_tokens": 5}
    first = client.responses.create(**ask)
    again = client.responses.create(**ask | {"previous_response_id": first.id, "input": "And?"})
    told = [first.output[0].id, "item_0", "item_2"]
    for order, ids in (
        ("asc", ["item_0", told[0], "item_2"]),
        ("desc", ["item_2", told[0], "item_0"]),
    ):
        for limit in (1, 2, 3):
            page = client.responses.input_items.list(again.id, order=order, limit=limit)  # type: ignore[arg-type]
            assert len(page.data) == limit and page.has_more is (limit < 3)
            assert [item.id for item in page] == ids  # goes on from page to page
    newest = client.responses.input_items.list(again.id).data[0].to_dict()
    assert newest == {
        "id": "item_2", "type": "message", "role": "user", "status": "completed",
        "content": [{"type": "input_text", "text": "And?"}],
    }  # fmt: skip
    path = f"/v1/responses/{again.id}"
    for query, param in (("after=x", "after"), ("limit=0", "limit"), ("order=up", "order")):
        answer = server.client.get(f"{path}/input_items?{query}")
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    assert server.client.get("/v1/responses/x/input_items").status_code == 404
    assert "has ended" in server.client.get(f"{path}?stream=true").json()["error"]["message"]


def test_tokens_of_a_response_are_counted_without_it(client: openai.OpenAI, server: Server) -> None:
    first = client.responses.create(**ASK)
    for more in ({}, {"instructions": "Be brief."}, {"previous_response_id": first.id}):
        ask = {key: ASK[key] for key in ("input", "tools")} | more
        answer = client.responses.create(**ASK | more)
        counted = server.post("/v1/responses/input_tokens", **ask).json()
        assert counted == {
            "object": "response.input_tokens",
            "input_tokens": answer.usage.input_tokens,  # type: ignore[union-attr]
        }
    whole = server.post("/v1/responses/input_tokens", previous_response_id=first.id).json()
    assert whole["input_tokens"] > first.usage.input_tokens  # type: ignore[union-attr]


def test_without_a_parser_the_model_is_shown_the_tools_and_writes_text(server: Server) -> None:
    """As vLLM; a chat is refused."""
    with running() as plain:
        ask = {key: value for key, value in ASK.items() if key != "model"}
        text = '<tool_call>{"name": "clock"}</tool_call>'
        forced = ask | {"structured_outputs": {"choice": [text]}}
        (item,) = plain.post("/v1/responses", **forced).json()["output"]
        assert item["content"][0]["text"] == text
        (call,) = plain.post("/v1/responses", tool_choice="required", **ask).json()["output"]
        assert call["name"] == "weather"


# ---------------------------------------------------------------------- parts of it


@pytest.mark.parametrize("choice", ["auto", "required", None])
def test_items_come_in_the_order_in_which_they_were_written(choice: str | None) -> None:
    texts = [*TEXTS, 'a <tool_call>{"name": "f", "arguments": {"a": 1,,}} b', CALL[:40], "", "a<"]
    if choice == "required":
        texts = ['[{"name":"f","parameters":{"a":"}]"}},{"name":"g","parameters":{}}]', '[{"n']
    for text in texts:
        read = []
        draw = random.Random(text)
        cuts = text and [sorted(draw.choices(range(len(text)), k=4)) for _ in range(60)]
        for places in ([], list(range(len(text))), *cuts):
            output, pieces = Output(parser_of(choice)), {}
            bounds = list(itertools.pairwise([0, *places, len(text)]))
            for begin, end in bounds:
                is_last = (begin, end) == bounds[-1]
                for place, piece in output.read(text[begin:end], is_last):
                    assert place >= len(pieces) - 1, "an item ends before the next begins"
                    pieces[place] = pieces.get(place, "") + piece
            items = [output.close(place, False) for place in range(len(output.items))]
            read.append(shown(items))
            assert list(pieces.values()) == [
                one[0] if len(one) == 2 else one[1] for one in read[-1]
            ]
        assert all(one == read[0] for one in read), text


def test_items_as_messages() -> None:
    def call(number: int) -> dict[str, Any]:
        return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}

    def told(number: int) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": f"c{number}", "output": f"{number}"}

    items = [
        {"role": "user", "content": "a"}, call(1), call(2), told(1), told(2),
        {"type": "message", "role": "assistant", "content": "b"}, call(3),
        {"type": "message", "role": "assistant", "content": "c"}, told(3),
        {"role": "assistant", "content": "d"}, {"role": "assistant", "content": "e"},
    ]  # fmt: skip
    found = [
        (m["role"], m["content"], [c["id"] for c in m.get("tool_calls", [])])
        for m in messages_of(items)
    ]
    assert found == [
        ("user", "a", []), ("assistant", [], ["c1", "c2"]), ("tool", "1", []), ("tool", "2", []),
        ("assistant", ["b", "c"], ["c3"]), ("tool", "3", []),
        ("assistant", "d", []), ("assistant", "e", []),
    ]  # fmt: skip
    tools, choice = tools_of([WEATHER], {"type": "function", "name": "weather"})
    assert tools[0]["function"]["parameters"] == CITY and choice["function"]["name"] == "weather"


def test_what_is_kept_has_a_bound() -> None:
    def body(name: str, text: str = "x") -> dict[str, Any]:
        return {"id": name, "output": [{"id": f"msg_{name}", "text": text}]}

    store = ResponseStore(most_bytes=400)
    for name in "abcdefgh":
        store.add(body(name), [{"role": "user"}])
        assert store.num_bytes == sum(kept.size for kept in store.kept.values()) <= 400
    assert "h" in store.kept and "a" not in store.kept and len(store.items) == len(store.kept)
    store.add(body("large", "x" * 500), [])
    assert "large" not in store.kept and "h" in store.kept
    store.add(body("h", "again"), [])
    assert store.get("h").items == body("h", "again")["output"]
    store.delete("h")
    with pytest.raises(APIError, match="'h' is not kept here"):
        store.delete("h")
    assert store.num_bytes == sum(kept.size for kept in store.kept.values())
