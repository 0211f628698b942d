"""The ways of reports of tool calls: texts of a model, and the turns behind them."""

from __future__ import annotations

from typing import Any

from mini_vllm import bundled
from mini_vllm.engine.chat_template import flatten, render_chat
from mini_vllm.entrypoints.anthropic.conversation import chat_of
from mini_vllm.entrypoints.anthropic.protocol import MessagesRequest
from mini_vllm.entrypoints.openai.required_tools import join_news, parser_of
from mini_vllm.entrypoints.openai.response_items import functions_of, messages_of
from mini_vllm.entrypoints.openai.responses import Output
from mini_vllm.model.checkpoint_files import load_tokenizer

ARGUMENTS = (
    "{% for call in messages[-1].tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}"
)


def answer(given: dict[str, Any]) -> dict[str, Any]:
    """Content and calls of `text`, read at once, by letters, and cut in two at every place; what
    those do not agree about is the answer, if there is something."""
    text = given["text"]
    ways = [[text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))]
    read = [_read(given.get("tool_choice", "auto"), pieces) for pieces in ways]
    other = [one for one in read if one != read[0]]
    return {"whole": read[0], "in pieces": other[0]} if other else read[0]


def _read(choice: Any, pieces: list[str]) -> dict[str, Any]:
    parser, news = parser_of(choice), {}
    for piece in pieces:
        news = join_news(news, parser.extract_streaming(piece))
    news = join_news(news, parser.finish())
    calls: dict[int, list[str]] = {}
    for change in news.get("tool_calls", []):
        function = change["function"]
        name, arguments = calls.get(change["index"], ["", ""])
        name, arguments = name + function.get("name", ""), arguments + function["arguments"]
        calls[change["index"]] = [name, arguments]
    return {"content": news.get("content", ""), "calls": [calls[i] for i in sorted(calls)]}


def next_prompt(given: dict[str, Any]) -> str:
    """What a template that writes the arguments of the last turn's calls makes of `arguments`."""
    calls = [{"type": "function", "function": {"name": "f", "arguments": given["arguments"]}}]
    messages = [{"role": "assistant", "content": None, "tool_calls": calls}]
    return render_chat(load_tokenizer(bundled.path("storyteller")), messages, template=ARGUMENTS)


def anthropic_messages(given: dict[str, Any]) -> list[list[str]]:
    """`messages` of /v1/messages as those of a chat: role, thought, text, calls."""
    chat = chat_of(MessagesRequest(model="m", max_tokens=9, **given))
    found = []
    for message in chat.messages:
        texts = [message.get("reasoning"), flatten(0, message["content"])]
        calls = [
            f"{call['id']} {call['function']['name']} {call['function']['arguments']}"
            for call in message.get("tool_calls", [])
        ]
        found.append([message["role"], *filter(None, texts), *calls])
    return found


def response_messages(given: dict[str, Any]) -> list[list[str]]:
    """`items` of /v1/responses as the messages of a chat: the role, the text, the calls."""
    found = []
    for message in messages_of(given["items"]):
        calls = [
            f"{call['id']} {call['function']['name']} {call['function']['arguments']}"
            for call in message.get("tool_calls", [])
        ]
        found.append(
            [message["role"], *([message["content"]] if message["content"] else []), *calls]
        )
    return found


def response_items(given: dict[str, Any]) -> list[list[str]]:
    """The items of /v1/responses that `text` becomes."""
    output = Output(parser_of("auto"))
    list(output.read(given["text"], True))
    return [
        ["message", item["content"][0]["text"]]
        if item["type"] == "message"
        else [item["type"], f"{item['name']} {item['arguments']}"]
        for item in output.items
    ]


def prompt_of(given: dict[str, Any]) -> str:
    """What a template makes of messages."""
    options = {key: given[key] for key in given.keys() - {"messages", "template"}}
    tokenizer = load_tokenizer(bundled.path("storyteller"))
    return render_chat(tokenizer, given["messages"], template=given["template"], **options)


def offered(given: dict[str, Any]) -> list[str]:
    """The types of those of `tools` that /v1/responses goes on with."""
    return [tool.get("type", "none") for tool in functions_of(given["tools"])]
