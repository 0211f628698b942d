"""Parsers for answers that must be tool calls, whole or streamed.

::

    [{"name": "weather", "parameters": {"city": "Oslo"}}, {"name": "clock", "para
                                       └── arguments ──┘                     no call yet

If ``max_tokens`` ends an answer, its last call may be incomplete; it is kept as it is.

Source: vllm/tool_parsers/streaming.py#L103-L195 (extract_required_tool_call_streaming) @ v0.22.1
"""

from __future__ import annotations

from typing import Any, Protocol

from mini_vllm.entrypoints.openai.json_object import ObjectReader
from mini_vllm.entrypoints.openai.tool_parser import CallReader, HermesToolParser, ToolCall


class AnswerParser(Protocol):
    """Turns the text of one answer, in one piece or many, into deltas of content and calls.

    Attributes:
        calls: the calls sent so far.
        are_whole: there are calls, the model chose them itself, and each is complete.
    """

    @property
    def calls(self) -> list[ToolCall]: ...

    @property
    def are_whole(self) -> bool: ...

    def extract_streaming(self, delta: str) -> dict[str, Any]: ...

    def finish(self) -> dict[str, Any]: ...


def parser_of(choice: Any, parallel: bool | None = True) -> AnswerParser:
    """The parser of an answer.

    Args:
        choice: "auto", "required", or a named tool; None if the whole answer is text.
        parallel: False keeps the first call only.
    """
    if choice is None:
        return TextParser()
    if isinstance(choice, dict):
        return NamedCallParser(choice["function"]["name"])
    parser = HermesToolParser() if choice == "auto" else RequiredCallParser()
    return FirstCallParser(parser) if parallel is False else parser


def join_news(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two deltas as one."""
    return first | {
        key: first[key] + second[key] if key in first else second[key] for key in second
    }


def one_change_a_call(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The changes of one event, each call's in one piece: some clients join the pieces of one event
    by their index only with those of other events."""
    by_call: dict[int, dict[str, Any]] = {}
    for change in changes:
        index = change["index"]
        if index in by_call:
            function = by_call[index]["function"]
            arguments = function.get("arguments", "") + change["function"]["arguments"]
            change = by_call[index] | {"function": function | {"arguments": arguments}}
        by_call[index] = change
    return list(by_call.values())


class TextParser:
    """The whole answer is content."""

    calls: list[ToolCall] = []  # noqa: RUF012  (it stays empty)
    are_whole = False

    def extract_streaming(self, delta: str) -> dict[str, Any]:
        return {"content": delta}

    def finish(self) -> dict[str, Any]:
        return {}


class NamedCallParser:
    """The whole answer is the arguments of one call, whose name is in the request."""

    are_whole = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[ToolCall] = []
        self._arguments = ObjectReader()

    def extract_streaming(self, delta: str) -> dict[str, Any]:
        if not delta:
            return {}
        self._arguments.read(delta)
        is_new = not self.calls
        if is_new:
            self.calls.append(ToolCall(self.name))
        (call,) = self.calls
        call.arguments += delta
        call.is_whole = self._arguments.is_whole
        change = call.as_dict() if is_new else {"function": {"arguments": delta}}
        return {"tool_calls": [{"index": 0} | change]}

    def finish(self) -> dict[str, Any]:
        return {}


class RequiredCallParser:
    """Reads a list of calls; the answer obeys the schema of "required".

    Attributes:
        is_complete: the list has been closed.
    """

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self.is_complete = False
        self._text = ""
        self._reader: CallReader | None = None

    @property
    def are_whole(self) -> bool:
        return self.is_complete

    def extract_streaming(self, delta: str) -> dict[str, Any]:
        """The new part of the answer, as OpenAI's tool call deltas: of each call first its name
        and id, then its arguments piece by piece."""
        self._text += "" if self.calls else delta
        changes = []
        while delta:
            if self._reader is None:
                before, brace, behind = delta.partition("{")
                self.is_complete = self.is_complete or (bool(self.calls) and "]" in before)
                if not brace:
                    break
                self._reader, delta = CallReader(self.calls), brace + behind
            changes += self._reader.read(delta)
            delta = self._reader.rest or ""
            self._reader = None if self._reader.rest is not None else self._reader
        return {"tool_calls": changes} if changes else {}

    def finish(self) -> dict[str, Any]:
        """An answer that ends before its first call is content."""
        return {} if self.calls or not self._text else {"content": self._text}


class FirstCallParser:
    """Drops all calls of another parser but the first."""

    def __init__(self, parser: AnswerParser) -> None:
        self.parser = parser

    @property
    def calls(self) -> list[ToolCall]:
        return self.parser.calls[:1]

    @property
    def are_whole(self) -> bool:
        return self.parser.are_whole

    def extract_streaming(self, delta: str) -> dict[str, Any]:
        news = self.parser.extract_streaming(delta)
        first = [change for change in news.pop("tool_calls", []) if change["index"] == 0]
        return news | ({"tool_calls": first} if first else {})

    def finish(self) -> dict[str, Any]:
        return self.parser.finish()
