"""Calls in a text, whole and in pieces; what a prompt says of tools; whom an error blames."""

from __future__ import annotations

import asyncio
import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm import bundled
from mini_vllm.engine.chat_template import render_chat
from mini_vllm.entrypoints.openai.chat import prompt_of
from mini_vllm.entrypoints.openai.errors import as_api_error
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.required_tools import RequiredCallParser
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


REQUIRED: list[tuple[str, Any]] = [
    ('wea"ther', {"city": 'Os"lo}], \\', "days": [1, {"a": []}], "": "\u00e9"}),
    ("now", {}),
    ("name", "parameters"),
    ("parameters", [[], {"name": "x", "parameters": {}}]),
]
"""Calls whose texts look like what stands between calls."""


def required_text(separators: tuple[str, str]) -> str:
    calls = [{"name": name, "parameters": parameters} for name, parameters in REQUIRED]
    return json.dumps(calls, separators=separators)


def required_stream(*pieces: str) -> tuple[RequiredCallParser, dict[int, tuple[str, str]]]:
    """The parser, and name and arguments of each call as a client puts them together."""
    parser, calls = RequiredCallParser(), {}
    for piece in pieces:
        for change in parser.extract_streaming(piece):
            function, is_new = change["function"], change["index"] not in calls
            assert is_new == ("name" in function) == ("id" in change)
            name, arguments = calls.get(change["index"], (function.get("name", ""), ""))
            calls[change["index"]] = (name, arguments + function["arguments"])
    return parser, calls


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_required_calls_stream_as_they_are_written(separators: tuple[str, str]) -> None:
    text = required_text(separators)
    for pieces in ([text], list(text), *((text[:at], text[at:]) for at in range(len(text)))):
        parser, calls = required_stream(*pieces)
        found = [(name, json.loads(arguments)) for name, arguments in calls.values()]
        assert found == REQUIRED and list(calls) == [0, 1, 2, 3] and parser.is_complete
        assert [call.arguments for call in parser.calls] == [a for _, a in calls.values()]


def test_required_calls_that_are_cut_are_kept_as_far_as_they_go() -> None:
    text, end = required_text((",", ":")), 0
    for number, (name, parameters) in enumerate(REQUIRED):
        head = f'[{{"name":{json.dumps(name)},"parameters":'
        arguments = json.dumps(parameters, separators=(",", ":"))
        for at in range(end, end + len(head)):
            assert len(required_stream(text[:at])[1]) == number, "a name is whole or not there"
        for length in range(len(arguments) + 2):
            parser, calls = required_stream(text[: end + len(head) + length])
            assert not parser.is_complete and calls[number] == (name, arguments[:length])
        end += len(head) + len(arguments) + 1
        assert [(n, json.loads(a)) for n, a in calls.values()] == REQUIRED[: number + 1]


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
    with pytest.raises(ValueError) as caught:
        render_chat(tokenizer, [{"role": "user", "content": "x"}], template="a\n{{ x }")
    error = as_api_error(caught.value)
    assert error.status == 400
    said = "the chat template fails with TemplateSyntaxError in line 2: unexpected '}'; mend"
    assert error.message.startswith(said)
