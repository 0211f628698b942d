"""The calls of an answer that must be calls, while it is still being written.

::

    [{"name": "weather", "parameters": {"city": "Oslo"}}, {"name": "clock", "para
                        │              └── arguments ──┘                     no call yet
                        └ from here on the name is certain

An answer that ``max_tokens`` cuts keeps what was written: its last call may lack an end.

Source: vllm/tool_parsers/streaming.py#L103-L195 (extract_required_tool_call_streaming) @ v0.22.1
"""

from __future__ import annotations

import json
import re
from typing import Any

from mini_vllm.entrypoints.openai.tool_parser import ToolCall

CALL_DEPTH = 2
"""Brackets that are open between a call's own members: those of the list and of the call."""
_HEAD = re.compile(r'"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"parameters"\s*:$')


class RequiredCallParser:
    """Reads each character of an answer once; it obeys the schema of "required".

    Attributes:
        calls: those whose name is certain; of the last one, the arguments as far as they go.
        is_complete: the list has been closed.
    """

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self.is_complete = False
        self._depth = 0
        self._in_string = self._is_escaped = self._in_arguments = False
        self._head = ""
        self._news: list[tuple[int, str]] = []

    def extract_streaming(self, delta: str) -> list[dict[str, Any]]:
        """The news that ``delta`` brings, as OpenAI's deltas of tool calls: of each call its
        name and id come first, with what there is of its arguments, then their further pieces."""
        known, self._news = len(self.calls), []
        for character in delta:
            self._take(character)
        deltas = []
        for index in range(max(known - 1, 0), len(self.calls)):
            call = self.calls[index]
            piece = "".join(character for place, character in self._news if place == index)
            call.arguments += piece
            if index >= known:
                deltas.append({"index": index} | call.as_dict())
            elif piece:
                deltas.append({"index": index, "function": {"arguments": piece}})
        return deltas

    def _take(self, character: str) -> None:
        self._count_brackets(character)
        if character == "}" and self._depth < CALL_DEPTH:
            self._in_arguments, self._head = False, ""
        elif self._in_arguments:
            self._news.append((len(self.calls) - 1, character))
        elif self._depth == CALL_DEPTH:
            self._head += character
            if character == ":" and (found := _HEAD.search(self._head)):
                self.calls.append(ToolCall(json.loads(found[1]), ""))
                self._in_arguments = True
        self.is_complete = bool(self.calls) and self._depth == 0

    def _count_brackets(self, character: str) -> None:
        """Those in strings do not count."""
        if self._in_string:
            self._in_string = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
        elif character == '"':
            self._in_string = True
        elif character in "[{":
            self._depth += 1
        elif character in "]}":
            self._depth -= 1
