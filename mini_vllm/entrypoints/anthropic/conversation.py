"""Convert a request to ``/v1/messages`` into a chat request: blocks become messages.

::

    user       [text "Rain?"]                 user, content "Rain?"
    assistant  [thinking "Hm", tool_use c]    assistant, reasoning "Hm", tool_calls [c]
    user       [tool_result of c, text "So?"] tool, tool_call_id c; then user, content "So?"

Source: vllm/entrypoints/anthropic/serving.py#L119-L429
(AnthropicServingMessages._convert_anthropic_to_openai_request) @ v0.22.1
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from mini_vllm.entrypoints.anthropic.protocol import (
    REFUSED,
    Block,
    CountTokensRequest,
    MessagesRequest,
)
from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest, refuse_fields
from mini_vllm.errors import show

BILLING = "x-anthropic-billing-header"
"""The prefix of a block that some agents put before their system prompt. It differs in each request
and is removed, because otherwise no prompt would share a cached prefix with another."""
THINKING = ("enabled", "adaptive", "disabled")
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of(request: CountTokensRequest) -> ChatCompletionRequest:
    """The request as a chat request.

    A last message of the assistant is the start of the answer, which the model continues.

    Raises:
        APIError: for blocks that this server does not support, and for Anthropic's own tools.
    """
    refuse_fields(request, REFUSED)
    _check_edits(request.context_management or {})
    messages: list[dict[str, Any]] = []
    orders = _system(request.system)
    for index, message in enumerate(request.messages):
        place = f"messages[{index}]"
        if message.get("role") == "system":
            orders += _orders(place, message)
        else:
            messages += _messages(place, message)
    if any(orders):
        messages.insert(0, {"role": "system", "content": "\n\n".join(filter(None, orders))})
    continues = bool(messages) and messages[-1]["role"] == "assistant"
    if continues and messages[-1].get("tool_calls"):
        raise APIError(
            "messages ends with tool_use; send its tool_result in a user's message behind it",
            param="messages",
        )
    chat: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        "tools": [_tool(index, tool) for index, tool in enumerate(request.tools or [])] or None,
        "chat_template_kwargs": _template_kwargs(request),
        "add_generation_prompt": not continues,
        "continue_final_message": continues,
    }
    choice = _choice(request.tool_choice or {"type": "auto"})
    if chat["tools"] or choice not in ("auto", "none"):
        chat["tool_choice"] = choice
        is_single = (request.tool_choice or {}).get("disable_parallel_tool_use") is True
        chat["parallel_tool_calls"] = not is_single
    if isinstance(request, MessagesRequest):
        names = ("max_tokens", "stream", "temperature", "top_p", "top_k", "kv_transfer_params")
        chat |= {name: getattr(request, name) for name in names}
        chat["stop"] = request.stop_sequences
        chat |= _output(request.output_config or {})
    return ChatCompletionRequest(**chat)


def _system(system: str | Sequence[Block] | None) -> list[str]:
    if not system:
        return []
    if isinstance(system, str):
        return [system]
    texts = [_field(f"system[{i}]", block, "text") for i, block in enumerate(system)]
    return ["".join(t for t in texts if not t.startswith(BILLING))]


def _orders(place: str, message: Block) -> list[str]:
    """The text of a system message between the turns, as coding agents send it. It is added to the
    first system message, because templates and models expect only one, at the start."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    parts = [part for one in _messages(place, message) for part in one["content"] or []]
    return ["".join(part["text"] for part in parts)]


def _check_edits(management: Block) -> None:
    """Accept only edits that clear the reasoning of earlier turns, which chat templates drop."""
    edits = management.get("edits") or []
    for edit in edits if isinstance(edits, list) else [edits]:
        kind = edit.get("type") if isinstance(edit, dict) else edit
        if not isinstance(kind, str) or not kind.startswith("clear_thinking"):
            raise APIError(
                f"context_management has the edit {show(kind)}; this server clears only "
                "thoughts (clear_thinking); leave the edit out, and send fewer messages",
                param="context_management",
            )


def _template_kwargs(request: CountTokensRequest) -> dict[str, Any] | None:
    """`thinking` as an argument of the chat template; its budget is one of sampling."""
    if request.thinking is None:
        return request.chat_template_kwargs
    kind = request.thinking.get("type")
    if kind not in THINKING:
        raise APIError(
            f"thinking.type is {show(kind)}; it must be one of {', '.join(THINKING)}",
            param="thinking",
        )
    return {"enable_thinking": kind != "disabled"} | (request.chat_template_kwargs or {})


def _output(config: Block) -> dict[str, Any]:
    """`output_config` as the chat's `response_format` and `reasoning_effort`."""
    chat: dict[str, Any] = {}
    if config.get("effort") is not None:
        chat["reasoning_effort"] = _field("output_config", config, "effort")
    form = config.get("format")
    if form is None:
        return chat
    schema = form.get("schema") if isinstance(form, dict) else None
    if not isinstance(schema, dict) or form.get("type") != "json_schema":
        raise APIError(
            f"output_config.format is {show(form)}; it must be {{'type': 'json_schema', 'schema': "
            "...}",
            param="output_config",
        )
    return chat | {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


# ---------------------------------------------------------------------- messages


def _messages(place: str, message: Block) -> list[dict[str, Any]]:
    """A message as one or several: tool results become separate messages, and come first."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise APIError(
            f"{place}.role is {show(role)}; it must be 'user', 'assistant' or 'system'",
            param="messages",
        )
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    found = _Blocks()
    found.read_all(f"{place}.content", content, role)
    return found.messages(role)


class _Blocks:
    """The blocks of one message, sorted by the fields of a chat message."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.thought = ""
        self.results: list[dict[str, Any]] = []

    def read_all(self, place: str, content: Any, role: str) -> None:
        if not isinstance(content, list):
            raise APIError(
                f"{place} is {show(content)}; it must be a text or a list of blocks",
                param="messages",
            )
        for index, block in enumerate(content):
            self.read(f"{place}[{index}]", block, role)

    def read(self, place: str, block: Any, role: str) -> None:
        kind = block.get("type") if isinstance(block, dict) else None
        known = READERS.get(kind) if isinstance(kind, str) else None
        if known is None or known[0] not in (role, "both"):
            kinds = [name for name, (whose, _) in READERS.items() if whose in (role, "both")]
            raise APIError(
                f"{place} is {show(block)}; a block of a message with role {role!r} must have a "
                f"type of {', '.join(kinds)}",
                param="messages",
            )
        known[1](self, place, block)

    def messages(self, role: str) -> list[dict[str, Any]]:
        message: dict[str, Any] = {"role": role, "content": self.parts or None}
        message |= {"tool_calls": self.calls} if self.calls else {}
        message |= {"reasoning": self.thought} if self.thought else {}
        return [*self.results, *([message] if len(message) > 2 or self.parts else [])]

    def take_text(self, place: str, block: Block) -> None:
        if text := _field(place, block, "text"):
            self.parts.append({"type": "text", "text": text})

    def take_image(self, place: str, block: Block) -> None:
        self.parts.append(_image(place, block))

    def take_document(self, place: str, block: Block) -> None:
        """A text document with its title and context before it, or the blocks of its content."""
        source: Any = block.get("source")
        kind = source.get("type") if isinstance(source, dict) else None
        if kind not in ("text", "content"):
            raise APIError(
                f"{place}.source is {show(source)}; its type must be 'text' or 'content': this "
                "server reads no PDF; send the text of its pages, or pictures of them",
                param="messages",
            )
        citations = block.get("citations")
        if isinstance(citations, dict) and citations.get("enabled"):
            raise APIError(
                f"{place}.citations are enabled; this server cannot cite; leave them out",
                param="messages",
            )
        heads = [name for name in ("title", "context") if block.get(name) is not None]
        content = source.get("content") if kind == "content" else _field(place, source, "data")
        texts = [_field(place, block, name) for name in heads]
        texts += [content] if isinstance(content, str) else []
        self.take_text(place, {"text": "\n".join(texts)})
        if not isinstance(content, str):
            self.read_all(f"{place}.source.content", content, "user")

    def take_thinking(self, place: str, block: Block) -> None:
        self.thought += _field(place, block, "thinking")

    def pass_over(self, place: str, block: Block) -> None:
        """Ignore redacted thinking, which clients send back, because it cannot be read."""

    def take_call(self, place: str, block: Block) -> None:
        arguments = block.get("input")
        if not isinstance(arguments, dict):
            raise APIError(
                f"{place}.input is {show(arguments)}; it must be an object", 400, "messages"
            )
        written = json.dumps(arguments, ensure_ascii=False)
        function = {"name": _field(place, block, "name"), "arguments": written}
        call = {"id": _field(place, block, "id"), "type": "function", "function": function}
        self.calls.append(call)

    def take_result(self, place: str, block: Block) -> None:
        content = block.get("content")
        inner = _Blocks()
        if not isinstance(content, str | None):
            inner.read_all(f"{place}.content", content, "user")
        texts = [part["text"] for part in inner.parts if part["type"] == "text"]
        text = content if isinstance(content, str) else "\n".join(texts)
        call_id = _field(place, block, "tool_use_id")
        self.results.append({"role": "tool", "tool_call_id": call_id, "content": text})
        if images := [part for part in inner.parts if part["type"] == "image_url"]:
            self.results.append({"role": "user", "content": images})


READERS: dict[str, tuple[str, Callable[[_Blocks, str, Block], None]]] = {
    "text": ("both", _Blocks.take_text),
    "image": ("user", _Blocks.take_image),
    "document": ("user", _Blocks.take_document),
    "tool_result": ("user", _Blocks.take_result),
    "tool_use": ("assistant", _Blocks.take_call),
    "thinking": ("assistant", _Blocks.take_thinking),
    "redacted_thinking": ("assistant", _Blocks.pass_over),
}
"""For each type of block the role of its message, and the method that reads it."""


def _image(place: str, block: Block) -> dict[str, Any]:
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if kind not in ("base64", "url"):
        raise APIError(
            f"{place}.source is {show(source)}; its type must be 'base64' or 'url'", 400, "messages"
        )
    url = _field(f"{place}.source", source, "data" if kind == "base64" else "url")
    if kind == "base64":
        url = f"data:{_field(f'{place}.source', source, 'media_type')};base64,{url}"
    return {"type": "image_url", "image_url": {"url": url}}


def _field(place: str, block: Any, name: str) -> str:
    value = block.get(name) if isinstance(block, dict) else None
    if not isinstance(value, str):
        param = place.partition("[")[0]
        raise APIError(f"{place}.{name} is {show(value)}; it must be a text", param=param)
    return value


# ---------------------------------------------------------------------- tools


def _tool(index: int, tool: Block) -> dict[str, Any]:
    place = f"tools[{index}]"
    if tool.get("type") not in (None, "custom"):
        raise APIError(
            f"{place} has type {show(tool['type'])}; this server has no tools of its own: leave "
            "the type out, and give name and input_schema",
            param="tools",
        )
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise APIError(
            f"{place}.input_schema is {show(schema)}; it must be a JSON schema, an object",
            param="tools",
        )
    function = {"name": _field(place, tool, "name"), "parameters": {"type": "object"} | schema}
    if tool.get("description") is not None:
        function["description"] = _field(place, tool, "description")
    return {"type": "function", "function": function}


def _choice(choice: Block) -> Any:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": _field("tool_choice", choice, "name")}}
    if not isinstance(kind, str) or kind not in CHOICES:
        raise APIError(
            f"tool_choice.type is {show(kind)}; it must be 'auto', 'any', 'tool' or 'none'",
            param="tool_choice",
        )
    return CHOICES[kind]
