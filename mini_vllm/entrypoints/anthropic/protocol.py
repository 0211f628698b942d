"""The fields of requests to ``/v1/messages``. Unknown ones are accepted and ignored.

Source: vllm/entrypoints/anthropic/protocol.py#L101-L148 (AnthropicMessagesRequest) @ v0.22.1
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from mini_vllm.entrypoints.openai.protocol import NOTHING, Lenient, Many

Block = dict[str, Any]
REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "mcp_servers": ("offer their tools as tools, and call them yourself", NOTHING),
    "container": ("run code yourself, and send what it prints", NOTHING),
    "output_format": ("send output_config={'format': ...}", NOTHING),
    "compaction": ("send fewer messages", NOTHING),
}
"""Anthropic's fields that would change the answer but are not supported."""


class CountTokensRequest(Lenient):
    model: str = Field(min_length=1)
    messages: Many[dict[str, Any]]
    system: str | Many[Block] | None = None
    tools: Many[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest):
    max_tokens: int = Field(ge=1)
    stream: bool | None = False
    stop_sequences: Many[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
