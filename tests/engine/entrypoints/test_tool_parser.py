"""Calls in a text, whole and in pieces; what a prompt says of tools; whom an error blames."""

from __future__ import annotations

import asyncio
import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import TemplateSyntaxError

from mini_vllm import bundled
from mini_vllm.engine.chat_template import render_chat
from mini_vllm.entrypoints.openai.chat import prompt_of
from mini_vllm.entrypoints.openai.errors import as_api_error
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.tool_parser import HermesToolParser, parse_tool_calls
from mini_vllm.model.checkpoint_files import load_tokenizer

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def stream(text: str, *places: int) -> tuple[str, dict[int, tuple[str, str]]]:
    """Content, and name and arguments of each call, of a text that is cut at these places."""
    parser = HermesToolParser()
    bounds = [0, *places, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    content, calls = "", {}
    for news in (*map(parser.extract_streaming, pieces), parser.finish()):
        content += news.get("content", "")
        for change in news.get("tool_calls", ()):
            name, arguments = calls.get(change["index"], ("", ""))
            function = change["function"]
            name += function.get("name", "")
            calls[change["index"]] = (name, arguments + function.get("arguments", ""))
    return content, calls


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>what is this?</tool_call> and more",
        'so <tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 5}</tool_call>',
        "I use <tool_call> like so",
        "almost <tool_",
        'cut <tool_call>{"na',
    ],
)
def test_a_call_that_is_none_is_text(text: str) -> None:
    """In a stream as in a whole answer nothing of it is lost, wherever it is cut."""
    assert parse_tool_calls(text) == (text, [])
    for place in range(len(text) + 1):
        assert stream(text, place) == (text, {})


def test_a_broken_call_harms_no_good_one() -> None:
    for place in range(len(CALL)):
        content, calls = stream(f"a {CALL}<tool_call>oh", place)
        assert content == "a <tool_call>oh" and calls.keys() == {0}
        assert calls[0] == ("weather", '{"city": "Oslo"}')
    content, calls = stream(f"<tool_call>oh</tool_call>{CALL}")
    assert content == "<tool_call>oh</tool_call>" and calls[1][0] == "weather"
    whole, found = parse_tool_calls(f"a {CALL}")
    assert whole == "a" and json.loads(found[0].arguments) == {"city": "Oslo"}


@pytest.mark.parametrize("excludes", [False, True])
def test_tools_that_may_not_be_used_are_shown_all_the_same(excludes: bool) -> None:
    """As in vLLM, unless the server is told otherwise."""
    tokenizer = load_tokenizer(bundled.path("storyteller"))
    fits = SimpleNamespace(check_length=lambda text: None)
    state: Any = SimpleNamespace(
        chat_template="{% if tools %}{{ tools[0].function.name }}{% else %}none{% endif %}",
        trust_request_chat_template=False,
        exclude_tools_when_tool_choice_none=excludes,
        engine=SimpleNamespace(tokenizer=tokenizer, input_processor=fits),
    )

    def shown(**more: Any) -> str:
        messages = [{"role": "user", "content": "Hello"}]
        request = ChatCompletionRequest(messages=messages, **more)
        return tokenizer.decode(asyncio.run(prompt_of(state, request)))

    assert shown() == "none" and shown(tools=[TOOL], tool_choice="auto") == "weather"
    assert shown(tools=[TOOL], tool_choice="none") == ("none" if excludes else "weather")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("temperature is -1; it must be at least 0", "temperature"),
        ("messages[0] has no role; add 'user'", "messages"),
        ("messages[2].content holds the part 3", "messages"),
        ("there is no adapter 'x'", None),
        ("this has gone wrong", None),
    ],
)
def test_an_error_blames_a_field_or_nobody(message: str, param: str | None) -> None:
    assert as_api_error(ValueError(message)).param == param


def test_a_template_that_cannot_be_read_is_named_with_the_line() -> None:
    tokenizer = load_tokenizer(bundled.path("storyteller"))
    with pytest.raises(TemplateSyntaxError) as caught:
        render_chat(tokenizer, [{"role": "user", "content": "x"}], template="a\n{{ x }")
    error = as_api_error(caught.value)
    assert error.status == 400
    assert error.message.startswith("the chat template cannot be read, line 2: unexpected '}'")
