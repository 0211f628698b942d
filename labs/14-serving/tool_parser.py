"""Parses tool calls in Hermes format, in a whole text or while the text still grows.

::

    I'll look. <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>
    └ content ┘└──────────────────────────── one call ─────────────────────────────────┘

The same parser reads whole answers, as a stream of one piece. A call ends where its JSON ends, so a
tag inside a JSON string is text. Text that may be the beginning of a tag is held back::

    so far        "I'll look. <tool_"     content "I'll look. ", held "<tool_"

Source: vllm/tool_parsers/hermes_tool_parser.py#L34-L273 (Hermes2ProToolParser) @ v0.22.1
"""

from __future__ import annotations

import json
import string
import uuid
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.entrypoints.openai.json_object import ObjectReader
from mini_vllm.structured_output.references import moved

START, END = "<tool_call>", "</tool_call>"


@dataclass
class ToolCall:
    """One call as OpenAI writes it; ``arguments`` is JSON in a string.

    Attributes:
        is_whole: whether the arguments are complete.
    """

    name: str
    arguments: str = ""
    id: str = field(default_factory=lambda: f"chatcmpl-tool-{uuid.uuid4().hex}")
    is_whole: bool = False

    def as_dict(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def partial_tag_overlap(text: str, tag: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``tag``; not all of it.

    The last ``len(tag) - 1`` characters decide, however long the text is.

    >>> partial_tag_overlap("so <tool", "<tool_call>")
    5

    Source: vllm/tool_parsers/utils.py#L34-L44 (partial_tag_overlap) @ v0.22.1
    """
    # TODO 14.12
    raise NotImplementedError(
        "TODO 14.12: write partial_tag_overlap in labs/14-serving/tool_parser.py"
        " (phase 14, 02-mini-build.md#task-12)"
    )


def find_name(call: ObjectReader) -> str | None:
    """The name in a call that is still being written. None until its closing quote is written, and
    for an invalid name: not a string, empty, or with half of a surrogate pair."""
    text, is_whole = call.find("name") or ("", False)
    if not is_whole or not text.startswith('"'):
        return None
    name = json.loads(text)
    return name if name and is_unicode(name) else None


def find_arguments(call: ObjectReader) -> str:
    """The arguments of a call that is still being written, as far as they are certain.

    ::

        {"name": "f", "arguments": {"a": 1       {"a": 1      as far as they are written
        {"name": "f", "arguments": {"a": 1}}     {"a": 1}     the last brace closes the call
        {"name": "f", "parameters": {"a": 1}}    {"a": 1}     some models call them so
        {"name": "f", "arguments": "{\\"a           nothing yet: a text is read when it is whole
        {"name": "f", "arguments": "{\\"a\\": 1}"    {"a": 1}     some models write JSON in a text
        {"name": "f"                             nothing yet; {} once the call is whole

    They are the model's own text, with escapes for control characters in its texts. An object or
    an array counts as far as it is written; a text, a number, true, false and null when they are
    whole. The value of the call's own key counts: a tool that is *named* "arguments" has none yet,
    for no colon follows, and a key of an object inside is another's. Of "arguments" and
    "parameters" the first one counts. All that is known
    to :meth:`~.json_object.ObjectReader.find`. What a text holds: :func:`json_in_text`.
    """
    # TODO 14.12
    raise NotImplementedError(
        "TODO 14.12: write find_arguments in labs/14-serving/tool_parser.py"
        " (phase 14, 02-mini-build.md#task-12)"
    )


def json_in_text(text: str) -> str:
    """The JSON inside a JSON string: ``{}`` if the string is empty, and the string itself, with its
    quotes, if it is not JSON inside."""
    inner = json.loads(text) or "{}"
    reader = ObjectReader()
    rest = reader.read(inner)
    if reader.is_whole:
        inner = reader.text + rest
    try:
        json.loads(inner)
    except (ValueError, RecursionError):
        return text
    return inner if is_unicode(inner) else text


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can encode the text: JSON can contain half of a surrogate pair, UTF-8
    cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


class CallReader:
    """Reads one call while it is being written, after its start tag: ``{...}</tool_call>``.

    A call is sent from the first character of its arguments on, if its name is known by then. What
    was sent cannot be taken back, so a call that becomes invalid later stays as far as it was sent.

    Args:
        calls: the calls sent so far, to which this one is added.
        start, end: the tags. The text may lack ``end``; white space around it is ignored.

    Attributes:
        content: the text, if it was not a call.
        rest: the text after the call; None until the call has ended.
    """

    def __init__(self, calls: list[ToolCall], start: str = "", end: str = "") -> None:
        self.calls, self.start, self.end = calls, start, end
        self.object = ObjectReader()
        self.call: ToolCall | None = None
        self.content = ""
        self.rest: str | None = None
        self._behind = ""

    def read(self, text: str) -> list[dict[str, Any]]:
        """The new part of the call, as OpenAI's tool call deltas: first the name and id, then the
        arguments piece by piece."""
        self._behind += text if self._has_ended else self.object.read(text)
        news = self._news()
        if self._has_ended:
            self._leave()
        return news

    def give_up(self) -> None:
        """End the call: the text has ended."""
        if self.call is None:
            self._be_text()
        else:
            self.rest = ""

    @property
    def _has_ended(self) -> bool:
        return self.object.is_whole or self.object.is_broken

    def _news(self) -> list[dict[str, Any]]:
        name = find_name(self.object) if self.call is None else self.call.name
        arguments = find_arguments(self.object)
        if not name or not arguments:
            return []
        news: list[dict[str, Any]] = []
        if self.call is None:
            self.call = ToolCall(name)
            self.calls.append(self.call)
            news.append({"index": len(self.calls) - 1} | self.call.as_dict())
        piece = arguments[len(self.call.arguments) :]
        if piece:
            self.call.arguments = arguments
            news.append({"index": len(self.calls) - 1, "function": {"arguments": piece}})
        _, is_whole = self.object.find("arguments", "parameters") or ("", True)
        self.call.is_whole = is_whole
        return news

    def _leave(self) -> None:
        """Skip the end tag, once it is written, with the white space around it and extra braces
        before it. Another call may follow inside the same tag."""
        if self.call is None:
            self._be_text()
            return
        self._behind = self._behind.lstrip()
        if self.end:
            closed = self._behind.lstrip("}" + string.whitespace)
            if closed.startswith(self.end):
                self._behind, self.end = closed[len(self.end) :].lstrip(), ""
            elif self.end.startswith(closed):
                return
        if self._behind:
            is_another = self.end and self.object.is_whole and self._behind.startswith("{")
            self.rest = (self.start if is_another else "") + self._behind

    def _be_text(self) -> None:
        """It was not a call. A complete object is content. Of an invalid one only its tag is
        content: the text after the tag may have a valid call and is read again."""
        read, is_whole = self.object.written, self.object.is_whole
        self.content = self.start + (read if is_whole else "")
        self.rest = (read if self.start and not is_whole else "") + self._behind


class HermesToolParser:
    """Turns the text of one streamed answer into deltas of content and tool calls.

    Attributes:
        text: text that is held back, because it may be the beginning of a tag.
        calls: the calls sent so far.
        reader: of the call that is being read.
    """

    def __init__(self) -> None:
        self.text = ""
        self.calls: list[ToolCall] = []
        self.reader: CallReader | None = None

    @property
    def are_whole(self) -> bool:
        """Whether there are calls, and each was written to its end."""
        return bool(self.calls) and all(call.is_whole for call in self.calls)

    def extract_streaming(self, delta: str) -> dict[str, Any]:
        """The news that ``delta`` brings, as a delta of OpenAI's: "content", "tool_calls", or {}.

        Content is what stands outside of calls, less what may be the beginning of a tag. What was
        told leaves ``self.text``: a long answer is read once. Of each call the name comes first,
        with its id, then the arguments as they grow.

        Source: vllm/tool_parsers/hermes_tool_parser.py#L203-L273
        (Hermes2ProToolParser.extract_tool_calls_streaming) @ v0.22.1
        """
        # TODO 14.12
        raise NotImplementedError(
            "TODO 14.12: write HermesToolParser.extract_streaming in labs/14-serving/tool_parser.py"
            " (phase 14, 02-mini-build.md#task-12)"
        )

    def _leave_call(self) -> str:
        """Continue after the call, if it has ended. Returns content, if it was not a call."""
        assert self.reader is not None
        self.text, content = self.reader.rest or "", self.reader.content
        if self.reader.rest is not None:
            self.reader = None
        return content

    def finish(self) -> dict[str, Any]:
        """What was held back, now that nothing more will come: the beginning of a tag that never
        was one, and a call without a name. Broken as they are, they are text."""
        content = ""
        while self.reader is not None:
            self.reader.give_up()
            content += self._leave_call()
            content += self.extract_streaming("").get("content", "")
        content, self.text = content + self.text, ""
        return {"content": content} if content else {}


# ---------------------------------------------------------------------- what a request asks for


NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of a tool without parameters: its arguments can only be ``{}``."""


def tool_schema(
    tools: list[dict[str, Any]], choice: Any, max_calls: int | None = None
) -> dict[str, Any] | None:
    """The JSON schema that makes an answer a tool call; None if the model need not make one.

    "required": an array of at most ``max_calls`` objects ``{"name": ..., "parameters": ...}``.
    References inside a tool's schema are adapted to its new place. A named tool: the schema of its
    parameters.

    Raises:
        ValueError: for parameters that are nested too deeply.

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
