"""Checks of the tools of a chat request, and of its tool choice."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mini_vllm.entrypoints.openai.errors import APIError
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.state import ServerState
from mini_vllm.errors import show

MOST_TOOLS = 1024


def check_tools(state: ServerState, request: ChatCompletionRequest) -> None:
    """Check tools and choice. If the choice is "allowed_tools", keep only those tools.

    Raises:
        APIError: for invalid tools, and for a choice without tools.
    """
    keep_allowed(request)
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
    names = [_check_tool(index, tool) for index, tool in enumerate(tools)]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise APIError(f"tools has two named {twice!r}; give each a name of its own", 400, "tools")
    if isinstance(choice, dict):
        wanted = _function_name(choice)
        if wanted not in names:
            raise APIError(
                f"tool_choice names {show(wanted or choice)}; the tools are {show(names)}",
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


def keep_allowed(request: ChatCompletionRequest) -> None:
    """Drop the tools that are not in "allowed_tools", so that the model does not see them."""
    choice = request.tool_choice
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return
    given: Any = choice.get("allowed_tools")
    allowed = given.get("tools") if isinstance(given, dict) else None
    wanted = [_function_name(one) for one in allowed] if isinstance(allowed, list) else []
    kept = [tool for tool in request.tools or [] if _function_name(tool) in wanted]
    if not kept or None in wanted:
        raise APIError(
            f"tool_choice allows {show(allowed)}; it must name functions of tools",
            param="tool_choice",
        )
    request.tools, request.tool_choice = kept, given.get("mode", "auto")


def _check_tool(index: int, tool: dict[str, Any]) -> str:
    """The name of a tool. Raises APIError for an invalid tool."""
    if (kind := tool.get("type", "function")) != "function":
        raise APIError(
            f"tools[{index}] has type {show(kind)}; it must be 'function'", param="tools"
        )
    name = _function_name(tool)
    if name is None:
        raise APIError(f"tools[{index}] has no function.name; add it", param="tools")
    parameters = tool["function"].get("parameters")
    if not isinstance(parameters, dict | None):
        raise APIError(
            f"tool {show(name)} has parameters {show(parameters)}; they must be a JSON schema, an "
            "object; leave them out for none",
            param="tools",
        )
    return name


def _function_name(tool: Any) -> str | None:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
