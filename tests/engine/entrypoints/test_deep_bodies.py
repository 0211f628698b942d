"""Bodies that nest deeply: a sentence or an answer, and never an error of Python's stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.entrypoints.server import Server, running

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("--enable-auto-tool-choice", "--tool-call-parser", "hermes") as server:
        yield server


def nested(levels: int, inside: str, last: str = "1") -> str:
    """JSON of objects in one another, by a member's name; or of lists."""
    if inside == "[":
        return "[" * levels + last + "]" * levels
    return f'{{"{inside}": ' * levels + last + "}" * levels


CHAT = '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, %s}'
TOOL = '"tools": [{"type": "function", "function": {"name": "f", "parameters": %s}}], '
NAMED = '"tool_choice": {"type": "function", "function": {"name": "f"}}'
FORM = '"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": %s}}'
TAG = '"response_format": {"type": "structural_tag", "format": %s}'
OLDER = (
    '"response_format": {"type": "structural_tag", "triggers": ["a"], '
    '"structures": [{"begin": "a", "end": "b", "schema": %s}]}'
)
CALL = (
    '{"max_tokens": 2, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", '
    '"tool_calls": [{"type": "function", "id": "a", "function": {"name": "f", "arguments": %s}}]}]}'
)
TEXT = (
    '{"input": "a", "max_output_tokens": 2, '
    '"text": {"format": {"type": "json_schema", "name": "a", "schema": %s}}}'
)
CHATS, ONCE = "chat/completions", '{"prompt": "Once", "max_tokens": 2, %s}'
PLACES = {
    "schema": (CHATS, CHAT % FORM, "items"),
    "schema of lists": (CHATS, CHAT % '"structured_outputs": {"json": {"const": %s}}', "["),
    "structural tag": (CHATS, CHAT % TAG, "content"),
    "older tag": (CHATS, CHAT % OLDER, "items"),
    "required": (CHATS, CHAT % (TOOL + '"tool_choice": "required"'), "items"),
    "named": (CHATS, CHAT % (TOOL + NAMED), "items"),
    "auto": (CHATS, CHAT % (TOOL + '"tool_choice": "auto"'), "items"),
    "content": (CHATS, '{"messages": [{"role": "user", "content": %s}], "max_tokens": 2}', "["),
    "arguments": (CHATS, CALL, "a"),
    "template": (CHATS, CHAT % '"chat_template_kwargs": {"a": %s}', "a"),
    "extra": (CHATS, CHAT % '"vllm_xargs": {"a": %s}', "a"),
    "unknown": ("completions", ONCE % '"unknown": %s', "["),
    "prompt": ("completions", '{"prompt": %s, "max_tokens": 2}', "["),
    "old name": ("completions", ONCE % '"guided_json": %s', "a"),
    "input": ("responses", '{"input": [{"role": "user", "content": %s}]}', "["),
    "text": ("responses", TEXT, "items"),
    "body": ("completions", "%s", "["),
}


@pytest.mark.parametrize("levels", [200, 480, 1000, 100_000])
@pytest.mark.parametrize("place", PLACES)
def test_a_deep_body_is_a_sentence(server: Server, place: str, levels: int) -> None:
    path, body, inside = PLACES[place]
    last = '{"type": "integer"}' if inside == "items" else "1"
    content = body.replace("%s", nested(levels, inside, last))
    headers = {"content-type": "application/json"}
    answer = server.client.post(f"/v1/{path}", content=content, headers=headers)
    assert answer.status_code in (200, 400), answer.text[:300]
    message: Any = answer.json().get("error") or {"message": ""}
    assert answer.status_code == 200 or message["message"]
    assert "recursion depth" not in message["message"], message["message"][:300]
