"""Which tools a chat request may offer, and which of them it may ask for."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.state import ServerState
from mini_vllm.errors import show

MOST_TOOLS = 1024


def check_tools(state: ServerState, request: ChatCompletionRequest) -> None:
    """Raises APIError for tools that cannot be chosen from, and choices without tools."""
    tools, choice = request.tools, request.tool_choice
    if tools is not None and not tools:
        raise APIError("tools is empty; name at least one or leave it out", param="tools")
    if not tools:
        if choice not in (None, "none"):
            raise APIError(
                "tool_choice is given but tools is not; add tools or leave it out",
                param="tool_choice",
            )
        return
    if len(tools) > MOST_TOOLS:
        raise APIError(
            f"tools has {len(tools):,} tools; at most {MOST_TOOLS:,} are allowed; send those that "
            "the conversation may need",
            param="tools",
        )
    names = [_function_name(tool) for tool in tools]
    if None in names:
        raise APIError("tools holds one without function.name; add it", param="tools")
    for tool, name in zip(tools, names, strict=True):
        _check_tool(tool, name)
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise APIError(f"tools has two named {twice!r}; give each a name of its own", 400, "tools")
    if isinstance(choice, dict):
        wanted = _function_name(choice)
        if wanted not in names:
            raise APIError(
                f"tool_choice names {show(wanted)}; the tools are {show(names)}",
                param="tool_choice",
            )
    elif choice not in (None, "none", "auto", "required"):
        raise APIError(
            f"tool_choice is {choice!r}; it must be 'none', 'auto', 'required' or a named tool",
            param="tool_choice",
        )
    if choice in (None, "auto") and not state.can_choose_tools:
        raise APIError(
            '"auto" tool choice needs a server that was started with --enable-auto-tool-choice '
            "--tool-call-parser hermes",
            param="tool_choice",
        )


def _check_tool(tool: dict[str, Any], name: str | None) -> None:
    if (kind := tool.get("type", "function")) != "function":
        raise APIError(
            f"tool {show(name)} has type {show(kind)}; it must be 'function'", param="tools"
        )
    parameters = tool["function"].get("parameters")
    if not isinstance(parameters, dict | None):
        raise APIError(
            f"tool {show(name)} has parameters {show(parameters)}; they must be a JSON schema, an "
            "object; leave them out for none",
            param="tools",
        )


def _function_name(tool: dict[str, Any]) -> str | None:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
