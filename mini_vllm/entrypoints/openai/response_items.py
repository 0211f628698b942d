"""Converts a request to /v1/responses into a chat: items to messages, and tools to their form.

::

    message, role "user", "Rain?"             {"role": "user", "content": "Rain?"}
    function_call c of weather                {"role": "assistant", "tool_calls": [c, d]}
    function_call d of clock
    function_call_output of c, "no"           {"role": "tool", "tool_call_id": "c", "content": "no"}

Source: vllm/entrypoints/openai/responses/utils.py#L79-L121 (construct_input_messages) @ v0.22.1
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    GenerationRequest,
    InputTokensRequest,
    check_effort,
)
from mini_vllm.entrypoints.openai.response_store import ResponseStore
from mini_vllm.entrypoints.openai.tools import keep_allowed
from mini_vllm.errors import show

logger = logging.getLogger(__name__)
Item = dict[str, Any]


def chat_of(request: InputTokensRequest, items: Sequence[Item]) -> ChatCompletionRequest:
    """The same request as a chat request.

    Args:
        items: of earlier responses and of this request. Of ``instructions``, only those of this
            request count.

    Raises:
        APIError: for fields that this server does not support and cannot ignore.
    """
    for name in ("conversation", "background", "prompt", "use_beam_search"):
        if getattr(request, name):
            raise APIError(f"{name} is not supported here; use /v1/chat/completions", param=name)
    if request.response_format not in (None, {}, {"type": "text"}):
        raise APIError(
            "response_format is a field of chats; send text={'format': ...}",
            param="response_format",
        )
    if request.n not in (None, 1):
        raise APIError(
            f"n is {request.n}; a response is one answer; send several requests", 400, "n"
        )
    # As in vLLM, no logprobs are sent without this entry, whatever top_logprobs is.
    includes_logprobs = "message.output_text.logprobs" in (request.include or ())
    form = request.form()
    if form is not None and request.structured_outputs:
        raise APIError(
            "text.format and structured_outputs are both given; give one",
            param="structured_outputs",
        )
    messages = messages_of(items)
    if request.instructions:
        messages.insert(0, {"role": "system", "content": request.instructions})
    request.tools = functions_of(request.tools or [])
    tools, choice = tools_of(request.tools, request.tool_choice)
    shared = {name: getattr(request, name) for name in GenerationRequest.model_fields}
    chat = ChatCompletionRequest(
        **shared
        | {
            "messages": messages,
            "n": None,
            "response_format": form,
            "max_tokens": request.max_output_tokens,
            "logprobs": includes_logprobs,
            "top_logprobs": request.top_logprobs if includes_logprobs else None,
            "truncate_prompt_tokens": -1 if request.truncation == "auto" else None,
            "chat_template_kwargs": request.chat_template_kwargs,
            "mm_processor_kwargs": request.mm_processor_kwargs,
            "reasoning_effort": _effort(request.reasoning or {}),
            "tools": tools or None,
            "tool_choice": choice,
            "parallel_tool_calls": request.parallel_tool_calls,
        }
    )
    keep_allowed(chat)
    return chat


# ---------------------------------------------------------------------- items


def input_items(request: InputTokensRequest, store: ResponseStore) -> list[Item]:
    """The items of the conversation that the request continues, then those of the request.

    Args:
        store: stored responses; an ``item_reference`` refers to an item of one of them.

    Raises:
        APIError: for an empty input, or a reference to an unknown item.
    """
    items: list[Item] = []
    if request.previous_response_id is not None:
        items += store.get(request.previous_response_id, "previous_response_id").items
    if isinstance(request.input, str):
        return [*items, {"type": "message", "role": "user", "content": request.input}]
    if not request.input and (request.input is not None or not items):
        raise APIError("input is empty; it must have at least 1 message", param="input")
    for index, item in enumerate(request.input or []):
        if item.get("type") == "item_reference":
            found = store.items.get(str(item.get("id")))
            if found is None:
                raise APIError(
                    f"input[{index}] refers to the item {show(item.get('id'))}, which is not kept "
                    "here; send the item itself",
                    param="input",
                )
            item = found
        items.append(item)
    return items


def as_listed(index: int, item: Item) -> Item:
    """An item as the list of a response's input has it: with an id, and its content as a list of
    parts."""
    kind = item.get("type") or "message"
    listed: Item = {"id": f"item_{index}", "status": "completed"} | item | {"type": kind}
    if isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        listed["content"] = [{"type": part, "text": item["content"]}]
    return listed


def messages_of(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Items as messages. Consecutive calls of the assistant, and the text beside them, become one
    message, because chat templates expect the outputs of calls right after it. Reasoning becomes a
    part of the message after it."""
    messages: list[dict[str, Any]] = []
    thought = ""
    for index, item in enumerate(items):
        kind = item.get("type") or "message"
        if kind == "reasoning":
            thought += _thought(index, item)
            continue
        message = _message(index, kind, item)
        if thought and message["role"] == "assistant":
            message["reasoning"] = thought
        thought = ""
        last = messages[-1] if messages else {}
        has_calls = "tool_calls" in message or "tool_calls" in last
        if message["role"] == last.get("role") == "assistant" and has_calls:
            last["content"] = [*_parts(last["content"]), *_parts(message["content"])]
            last["tool_calls"] = last.get("tool_calls", []) + message.get("tool_calls", [])
            if "reasoning" in message:
                last["reasoning"] = last.get("reasoning", "") + message["reasoning"]
        else:
            messages.append(message)
    return messages


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [content] if content is not None else []


def _message(index: int, kind: Any, item: Item) -> dict[str, Any]:
    if kind == "message":
        return {"role": item.get("role"), "content": item.get("content")}
    if kind == "function_call":
        function = {name: _text(index, item, name) for name in ("name", "arguments")}
        call = {"id": _text(index, item, "call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        output = item.get("output")
        if not isinstance(output, str | list):
            raise APIError(
                f"input[{index}].output is {show(output)}; it must be a text or a list of parts",
                param="input",
            )
        return {"role": "tool", "tool_call_id": _text(index, item, "call_id"), "content": output}
    raise APIError(
        f"input[{index}] is of type {show(kind)}; it must be 'message', 'function_call', "
        "'function_call_output', 'reasoning' or 'item_reference'",
        param="input",
    )


def _thought(index: int, item: Item) -> str:
    """The text of a reasoning item, or else of its summary.

    Source: vllm/entrypoints/openai/responses/utils.py#L142-L237
    (_construct_message_from_response_item) @ v0.22.1
    """
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise APIError(
            f"input[{index}].content is {show(parts)}; reasoning is a list of parts with a text",
            param="input",
        )
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _text(index: int, item: Item, name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise APIError(f"input[{index}].{name} is {show(value)}; it must be a text", param="input")
    return value


# ---------------------------------------------------------------------- tools


def functions_of(tools: Sequence[Item]) -> list[Item]:
    """The tools that this server supports. Agents send OpenAI's built-in tools, and tools without a
    schema, beside their functions to every server. These are dropped, with a warning in the log.
    If a request has no functions at all, :func:`tools_of` refuses them."""
    functions = [tool for tool in tools if tool.get("type") == "function"]
    others = [tool.get("type") for tool in tools if tool.get("type") != "function"]
    if not functions or not all(isinstance(kind, str) for kind in others):
        return list(tools)
    if others:
        logger.warning("tools of type %s are left out: only functions are offered", show(others))
    return functions


def tools_of(tools: Sequence[Item], choice: Any) -> tuple[list[dict[str, Any]], Any]:
    """Tools and choice in the form of a chat request, where a function is one level deeper."""
    plain = [_tool(index, tool) for index, tool in enumerate(tools)]
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("tools")
        names = [_name(one) for one in allowed] if isinstance(allowed, list) else []
        deeper = [{"type": "function", "function": {"name": name}} for name in names]
        allowed_tools = {"mode": choice.get("mode", "auto"), "tools": deeper}
        choice = {"type": "allowed_tools", "allowed_tools": allowed_tools}
    elif isinstance(choice, dict):
        if choice.get("type") != "function" or _name(choice) is None:
            raise APIError(
                f"tool_choice is {show(choice)}; it must be 'none', 'auto', 'required', a named "
                "function such as {'type': 'function', 'name': 'f'}, or allowed_tools",
                param="tool_choice",
            )
        choice = {"type": "function", "function": {"name": _name(choice)}}
    if not plain and choice == "auto":
        choice = None  # many clients fill it in
    return plain, choice


def _tool(index: int, tool: Item) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise APIError(
            f"tools[{index}] has type {show(tool.get('type'))}; this server has no tools of its "
            "own: it must be 'function'",
            param="tools",
        )
    if _name(tool) is None:
        raise APIError(
            f"tools[{index}] has no name; here a function's name, description and parameters "
            "stand beside its type",
            param="tools",
        )
    function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    return {"type": "function", "function": function}


def _name(tool: Any) -> str | None:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else None


# ---------------------------------------------------------------------- thought


def _effort(reasoning: dict[str, Any]) -> str | None:
    effort = reasoning.get("effort")
    if not isinstance(effort, str | None):
        raise APIError(
            f"reasoning.effort is {show(effort)}; it must be a text such as 'low'",
            param="reasoning",
        )
    if effort is not None:
        check_effort("reasoning.effort", effort, "reasoning")
    return effort
