"""Calls in a text, whole and in pieces; what a prompt says of tools; whom an error blames."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm import bundled
from mini_vllm.engine.chat_template import render_chat
from mini_vllm.entrypoints.openai.chat import prompt_of
from mini_vllm.entrypoints.openai.errors import as_api_error
from mini_vllm.entrypoints.openai.json_object import ObjectReader
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.required_tools import RequiredCallParser, one_change_a_call
from mini_vllm.entrypoints.openai.tool_parser import HermesToolParser
from mini_vllm.errors import Fault, RequestError
from mini_vllm.model.checkpoint_files import load_tokenizer

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


Answer = tuple[str, list[tuple[str, str]]]


def stream(pieces: list[str]) -> Answer:
    """Content, and name and arguments of each call, as a client puts a stream together."""
    parser = HermesToolParser()
    content, calls = "", []
    for news in (*map(parser.extract_streaming, pieces), parser.finish()):
        content += news.get("content", "")
        for change in news.get("tool_calls", ()):
            function = change["function"]
            assert ("name" in function) == ("id" in change) == (change["index"] == len(calls))
            name, arguments = ("", "") if "id" in change else calls.pop()
            name, arguments = function.get("name", name), arguments + function["arguments"]
            calls.append((name, arguments))
    assert calls == [(call.name, call.arguments) for call in parser.calls]
    return content, calls


def whole(text: str) -> Answer:
    return stream([text])


def cuts(text: str, *places: int) -> list[str]:
    return [text[a:b] for a, b in itertools.pairwise([0, *sorted(places), len(text)])]


WEATHER = ("weather", '{"city": "Oslo"}')
ANSWERS: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "plain": ("a < b <tool and </tool_call>", "a < b <tool and </tool_call>", []),
    "one": (f"I look. {CALL}", "I look. ", [WEATHER]),
    "two and text around": (f"a\n{CALL}\n\n{CALL} b {CALL} ", "a\nb ", [WEATHER] * 3),
    "a tag in a text": (
        '<tool_call>{"name": "w", "arguments": {"h": "</tool_call> <tool_call>{}"}}</tool_call>',
        "", [("w", '{"h": "</tool_call> <tool_call>{}"}')],
    ),
    "JSON in a text": (
        r'<tool_call>{"name": "w", "arguments": "{\"a\": \"\u00e9 \\\"\"}"}</tool_call>',
        "", [("w", '{"a": "é \\""}')],
    ),
    "no JSON in a text": (
        '<tool_call>{"name": "w", "arguments": "Oslo"}</tool_call>', "", [("w", '"Oslo"')],
    ),
    "half a pair in a text": (
        r'<tool_call>{"name": "w", "arguments": "{\"a\": \"\ud83d\"}"}</tool_call>',
        "", [("w", r'"{\"a\": \"\ud83d\"}"')],
    ),
    "an empty text": ('<tool_call>{"name": "w", "arguments": ""}</tool_call>', "", [("w", "{}")]),
    "null": ('<tool_call>{"name": "w", "arguments": null}</tool_call>', "", [("w", "null")]),
    "a list": ('<tool_call>{"name": "w", "arguments": [1, {}]}', "", [("w", "[1, {}]")]),
    "a number": ('<tool_call>{"name":"w","arguments":-1.5e+3}', "", [("w", "-1.5e+3")]),
    "parameters": (
        '<tool_call>{"name": "w", "parameters": {"a": []}}</tool_call>', "", [("w", '{"a": []}')],
    ),
    "both": (
        '<tool_call>{"name": "w", "parameters": {"a": 1}, "arguments": {"b": 2}}</tool_call>',
        "", [("w", '{"a": 1}')],
    ),
    "arguments first": (
        '<tool_call>{"arguments": {"name": "x", "arguments": {}}, "name": "w"}</tool_call>',
        "", [("w", '{"name": "x", "arguments": {}}')],
    ),
    "a name in another member": (
        '<tool_call>{"user": {"name": "x"}, "name": "w", "arguments": {}}', "", [("w", "{}")],
    ),
    "twice the same key": (
        '<tool_call>{"name": "w", "name": "x", "arguments": {}, "arguments": [1]}</tool_call>',
        "", [("w", "{}")],
    ),
    "a key in escapes": (r'<tool_call>{"n\u0061me": "w\n"}</tool_call>', "", [("w\n", "{}")]),
    "no arguments": ('<tool_call>{"name": "now"}</tool_call>', "", [("now", "{}")]),
    "no end tag": (f'{CALL.removesuffix("</tool_call>")}{CALL}', "", [WEATHER] * 2),
    "the end tag is cut": (CALL[:-5], "", [WEATHER]),
    "the last brace is missing": (CALL.replace("}}", "}") + CALL, "", [WEATHER] * 2),
    "a brace too many": (CALL.replace("}}", "}}}"), "", [WEATHER]),
    "cut in its arguments": (
        'b <tool_call>{"name": "w", "arguments": {"a": "x', "b ", [("w", '{"a": "x')],
    ),
    "broken arguments": (
        '<tool_call>{"name": "w", "arguments": {"a": 1,,}}</tool_call>',
        ",}}</tool_call>", [("w", '{"a": 1,')],
    ),
    "a quote is missing": (
        f'<tool_call>{{"name": "w</tool_call>{CALL}',
        '<tool_call>{"name": "w</tool_call>', [WEATHER],
    ),
    "a broken one before": (
        f"<tool_call>oh</tool_call>{CALL}", "<tool_call>oh</tool_call>", [WEATHER],
    ),
    "a broken one behind": (f"a {CALL}<tool_call>oh", "a <tool_call>oh", [WEATHER]),
}  # fmt: skip
for _text in (
    "<tool_call>what is this?</tool_call> and more",
    'so <tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    r'<tool_call>{"name": "\ud83d", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "w", "arguments": oops}</tool_call>',
    '<tool_call>{"name": "w", "arguments": nul}</tool_call>',
    '<tool_call>{"name": "w", "arguments": 01}</tool_call>',
    r'<tool_call>{"name": "w\q", "arguments": {}}</tool_call>',
    f"<tool_call>[{CALL[11:-12]}]</tool_call>",
    f"<tool_call>{CALL[11:-12]!r}</tool_call>",
    "I use <tool_call> like so",
    "almost <tool_",
    'cut <tool_call>{"na',
    'cut <tool_call>{"name": "w", "arguments": ',
):
    ANSWERS[_text] = (_text, _text, [])  # what cannot be read is content, all of it


@pytest.mark.parametrize("name", ANSWERS)
def test_whole_and_stream_agree_wherever_they_are_cut(name: str) -> None:
    text, content, calls = ANSWERS[name]
    assert whole(text) == (content, calls)
    assert stream(list(text)) == (content, calls)
    for place in range(len(text) + 1):
        assert stream(cuts(text, place)) == (content, calls), place
    draw = random.Random(text)
    for _ in range(200):
        places = [draw.randrange(len(text) + 1) for _ in range(draw.randint(2, 9))]
        assert stream(cuts(text, *places)) == (content, calls), sorted(places)


PIECES = [
    "<tool_call>", "</tool_call>", '{"name": "f", "arguments": ', '{"a": 1}', '"name"',
    '"arguments"', '"parameters"', '"f"', ": ", "{", "}", "[", "]", ",", '"', "\\", "\\u00",
    " ", "\n", "1", "-", ".", "e", "true", "null", "x", "é", "<",
]  # fmt: skip


@given(parts=st.lists(st.sampled_from(PIECES), max_size=16), data=st.data())
@settings(max_examples=400, deadline=None)
def test_any_text_means_the_same_in_pieces(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    assert stream(list(text)) == stream(cuts(text, *places)) == stream(parts) == whole(text)


def test_an_object_that_is_broken_stays_so_however_it_comes() -> None:
    """What follows an invalid character is not read as an object of its own."""
    for pieces in (['[{"a": 1}]'], ["[", '{"a": 1}', "]"], list('[{"a": 1}]')):
        reader = ObjectReader()
        rest = [reader.read(piece) for piece in pieces]
        assert reader.is_broken and not reader.is_whole and "".join(rest) == '[{"a": 1}]'


@given(parts=st.lists(st.sampled_from(PIECES[2:]), max_size=12))
@settings(max_examples=400, deadline=None)
def test_an_object_ends_where_json_says(parts: list[str]) -> None:
    """The reader takes what Python's json takes (less NaN and Infinity), and nothing else; control
    characters in texts, too, which it writes as escapes."""
    text = "{" + "".join(parts)
    reader = ObjectReader()
    rest = reader.read(text)
    assert reader.written + rest == text
    in_pieces = ObjectReader()
    for letter in text:
        if not (in_pieces.is_whole or in_pieces.is_broken):
            in_pieces.read(letter)
    assert (in_pieces.text, in_pieces.written) == (reader.text, reader.written)
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except ValueError:
        assert not reader.is_whole
    else:
        assert reader.is_whole and len(reader.written) == end
        assert json.loads(reader.text) == value


@given(value=st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12,
), name=st.text(min_size=1), ascii=st.booleans(), indent=st.sampled_from([None, 2]))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_what_json_writes_is_read_as_it_is(value: Any, name: str, ascii: bool, indent: int) -> None:
    call = {"x": value, "name": name, "arguments": {"a": value}}
    text = json.dumps(call, ensure_ascii=ascii, indent=indent)
    ((found, arguments),) = whole(f"<tool_call>{text}</tool_call>")[1]
    assert found == name and json.loads(arguments) == {"a": value} and arguments in text


def test_a_long_call_is_read_once() -> None:
    """Each character is looked at once: twice the length takes about twice as long, not four
    times."""

    def seconds(size: int) -> float:
        text = f'<tool_call>{{"name": "f", "arguments": {{"a": {json.dumps([[1, "x"]] * size)}}}}}'
        pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
        begin = time.process_time()
        (call,) = stream(pieces)[1]
        assert json.loads(call[1]) == {"a": [[1, "x"]] * size}
        return time.process_time() - begin

    assert min(seconds(4000) for _ in range(3)) < 10 * min(seconds(1000) for _ in range(3))


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
        for change in parser.extract_streaming(piece).get("tool_calls", []):
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


def test_an_event_has_one_change_of_a_call() -> None:
    """A client may join pieces by their index, but not those of the first event."""
    parser = RequiredCallParser()
    (changes,) = parser.extract_streaming(required_text((",", ":"))).values()
    assert len(changes) > len(REQUIRED)
    joined = one_change_a_call(changes)
    assert [(one["index"], one["id"]) for one in joined] == [
        (index, call.id) for index, call in enumerate(parser.calls)
    ]
    assert [one["function"] for one in joined] == [
        {"name": call.name, "arguments": call.arguments} for call in parser.calls
    ]
    assert one_change_a_call(changes[1:2]) == changes[1:2]


def test_required_calls_that_are_cut_are_kept_as_far_as_they_go() -> None:
    text, end = required_text((",", ":")), 0
    for number, (name, parameters) in enumerate(REQUIRED):
        head = f'[{{"name":{json.dumps(name)},"parameters":'
        arguments = json.dumps(parameters, separators=(",", ":"))
        for at in range(end, end + len(head) + 1):
            assert len(required_stream(text[:at])[1]) == number, "a name is whole or not there"
        least = (
            len(arguments) if arguments.startswith('"') else 1
        )  # a text is read when it is whole
        for length in range(least, len(arguments) + 2):
            parser, calls = required_stream(text[: end + len(head) + length])
            assert not parser.is_complete and calls[number] == (name, arguments[:length])
        end += len(head) + len(arguments) + 1
        assert [(n, json.loads(a)) for n, a in calls.values()] == REQUIRED[: number + 1]


@pytest.mark.parametrize("excludes", [False, True])
def test_tools_that_may_not_be_used_are_shown_all_the_same(excludes: bool) -> None:
    """As in vLLM, unless the server is told otherwise."""
    tokenizer = load_tokenizer(bundled.path("storyteller"))
    fits = SimpleNamespace(images=None, check_length=lambda *_: None)
    state: Any = SimpleNamespace(
        chat_template="{% if tools %}{{ tools[0].function.name }}{% else %}none{% endif %}",
        trust_request_chat_template=False,
        template_kwargs=lambda request: {},
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
    ("error", "status", "param"),
    [
        (RequestError("it is -1", param="temperature", value=-1), 400, "temperature"),
        (RequestError("it broke", param="temperature", fault=Fault.ENGINE), 500, "temperature"),
        (ValueError("temperature is -1; it must be at least 0"), 400, None),
        (RuntimeError("temperature is -1"), 500, None),
        (NotImplementedError("no"), 501, None),
    ],
)
def test_an_errors_type_says_whose_fault_it_is(
    error: Exception, status: int, param: str | None
) -> None:
    answer = as_api_error(error)
    assert (answer.status, answer.param) == (status, param)


def test_a_template_that_cannot_be_read_is_named_with_the_line() -> None:
    tokenizer = load_tokenizer(bundled.path("storyteller"))
    with pytest.raises(ValueError) as caught:
        render_chat(tokenizer, [{"role": "user", "content": "x"}], template="a\n{{ x }")
    error = as_api_error(caught.value)
    assert error.status == 400
    said = "the chat template fails with TemplateSyntaxError in line 2: unexpected '}'; mend"
    assert error.message.startswith(said)
