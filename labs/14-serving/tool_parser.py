"""Tool calls in a model's text, in the format of Hermes, whole and while the text still grows.

::

    I'll look. <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>
    └ content ┘└──────────────────────────── one call ─────────────────────────────────┘

While it streams, the text so far is parsed afresh each time and only what is new is sent. What may
yet turn out to be a tag is held back::

    so far        "I'll look. <tool_"     content "I'll look. ", held "<tool_"

Source: vllm/tool_parsers/hermes_tool_parser.py#L34-L273 (Hermes2ProToolParser) @ v0.22.1
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.structured_output.references import moved

START, END = "<tool_call>", "</tool_call>"


@dataclass
class ToolCall:
    """One call as OpenAI writes it; ``arguments`` is JSON in a string."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"chatcmpl-tool-{uuid.uuid4().hex}")

    def as_dict(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def parse_tool_calls(text: str) -> tuple[str | None, list[ToolCall]]:
    """Split a whole answer into content and calls.

    Returns:
        The text before the first call (None if there is none), and the calls. If one of them is
        no JSON object with a name, all of the text is content: a broken call is no call.
    """
    place = text.find(START)
    if place < 0:
        return text, []
    calls = []
    for part in text[place:].split(START)[1:]:
        try:
            value = json.loads(part.split(END)[0])
            arguments = json.dumps(value.get("arguments", {}), ensure_ascii=False)
            name = value["name"]
        except (ValueError, KeyError, TypeError, AttributeError):
            return text, []
        if not isinstance(name, str):
            return text, []
        calls.append(ToolCall(name, arguments))
    return text[:place].strip() or None, calls


def partial_tag_overlap(text: str, tag: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``tag``; not all of it.

    >>> partial_tag_overlap("so <tool", "<tool_call>")
    5

    Source: vllm/tool_parsers/utils.py#L34-L44 (partial_tag_overlap) @ v0.22.1
    """
    # TODO 14.12
    raise NotImplementedError(
        "TODO 14.12: write partial_tag_overlap in labs/14-serving/tool_parser.py"
        " (phase 14, 02-mini-build.md#task-12)"
    )


def find_name(call: str) -> str | None:
    """The name in a call that is still being written; None until its closing quote is there."""
    place = call.find('"name"')
    if place < 0:
        return None
    rest = call[place + len('"name"') :].lstrip()
    if not rest.startswith(":"):
        return None
    try:
        name, _ = json.JSONDecoder().raw_decode(rest[1:].lstrip())
    except ValueError:
        return None
    return name if isinstance(name, str) else None


def find_arguments(call: str, is_complete: bool) -> str:
    """The arguments of a call that is still being written, as far as they are certain.

    ::

        {"name": "f", "arguments": {"a": 1         {"a": 1       as far as they are written
        {"name": "f", "arguments": {"a": 1}}       {"a": 1}      the last brace closes the call
        {"name": "f"                               nothing yet; {} once the call is complete

    White space at the end is never certain: the brace of the call may follow. Of a complete call
    whose arguments are no JSON, all counts but that brace.
    """
    # TODO 14.12
    raise NotImplementedError(
        "TODO 14.12: write find_arguments in labs/14-serving/tool_parser.py"
        " (phase 14, 02-mini-build.md#task-12)"
    )


@dataclass
class _Sent:
    """What has been sent of one call."""

    id: str | None = None
    arguments: str = ""


class HermesToolParser:
    """Turns the text of one streamed answer into deltas of content and tool calls."""

    def __init__(self) -> None:
        self.text = ""
        self.num_content_sent = 0
        self.calls: list[_Sent] = []

    def extract_streaming(self, delta: str) -> dict[str, Any]:
        """The news that ``delta`` brings, as a delta of OpenAI's: "content", "tool_calls", or {}.

        Content is what stands before the first tag, less what may be the beginning of one. Of
        each call the name comes first, with its id, then the arguments as they grow.

        Source: vllm/tool_parsers/hermes_tool_parser.py#L203-L273
        (Hermes2ProToolParser.extract_tool_calls_streaming) @ v0.22.1
        """
        # TODO 14.12
        raise NotImplementedError(
            "TODO 14.12: write HermesToolParser.extract_streaming in labs/14-serving/tool_parser.py"
            " (phase 14, 02-mini-build.md#task-12)"
        )

    def _call_news(self, index: int, call: str) -> list[dict[str, Any]]:
        """What is new of the ``index``-th call, whose text so far is ``call``."""
        body, tag, _ = call.partition(END)
        if not tag:
            body = body[: len(body) - partial_tag_overlap(body, END)]
        name = find_name(body)
        if name is None:
            return []
        while len(self.calls) <= index:
            self.calls.append(_Sent())
        sent, news = self.calls[index], []
        if sent.id is None:
            sent.id = f"chatcmpl-tool-{uuid.uuid4().hex}"
            function = {"name": name, "arguments": ""}
            news.append({"index": index, "id": sent.id, "type": "function", "function": function})
        arguments = find_arguments(body, bool(tag))
        if len(arguments) > len(sent.arguments):
            function = {"arguments": arguments[len(sent.arguments) :]}
            news.append({"index": index, "function": function})
            sent.arguments = arguments
        return news

    def finish(self) -> dict[str, Any]:
        """What was held back, now that nothing more will come: the beginning of a tag that never
        was one, and calls that never got a name. Broken as they are, they are text."""
        content, *calls = self.text.split(START)
        named = {index for index, sent in enumerate(self.calls) if sent.id is not None}
        nameless = [START + call for index, call in enumerate(calls) if index not in named]
        held = content[self.num_content_sent :] + "".join(nameless)
        return {"content": held} if held else {}


# ---------------------------------------------------------------------- what a request asks for


NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
"""Of a tool without parameters: what it is called with is ``{}``, and nothing is made up."""


def tool_schema(
    tools: list[dict[str, Any]], choice: Any, max_calls: int | None = None
) -> dict[str, Any] | None:
    """The JSON schema that makes an answer a call; None if the model is free.

    "required": an array of ``{"name": ..., "parameters": ...}``, at most ``max_calls`` of them,
    where a reference of a tool's schema still leads to that tool's own part. A named tool: its
    own parameters.

    Raises:
        ValueError: for parameters that nest too deeply to be moved into the array.

    Source: vllm/tool_parsers/utils.py#L220-L253 (get_json_schema_from_tools) @ v0.22.1
    """
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    if isinstance(choice, dict):
        return functions[choice["function"]["name"]].get("parameters") or NO_ARGUMENTS
    if choice != "required":
        return None
    one_of = []
    for index, (name, function) in enumerate(functions.items()):
        place = ("items", "anyOf", str(index), "properties", "parameters")
        parameters = function.get("parameters") or NO_ARGUMENTS
        call = {"name": {"type": "string", "enum": [name]}, "parameters": moved(parameters, place)}
        one_of.append(
            {
                "type": "object",
                "properties": call,
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    array: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": one_of}}
    return array if max_calls is None else array | {"maxItems": max_calls}
