"""From messages to a prompt: what clients send, put into the shape that chat templates know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    template: str | None = None,
    tools: list[dict[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    **kwargs: Any,
) -> str:
    """The conversation as text.

    Args:
        tokenizer: of the ``transformers`` kind.
        messages: OpenAI's, whose content may be text, a list of text parts, or None.
        template: Jinja, instead of the tokenizer's own.
        tools: what the model may call, for templates that tell it.
        add_generation_prompt: end with the beginning of the assistant's turn.
        continue_final_message: leave the last message open, for the model to go on with.

    Raises:
        ValueError: for a message without a role, content of a wrong type, or no template.
    """
    if tokenizer is None:
        raise ValueError("messages need a tokenizer, and none is loaded; send token ids instead")
    if template is None and tokenizer.chat_template is None:
        raise ValueError(
            "the tokenizer has no chat template; start the server with --chat-template FILE, or "
            "send a prompt to /v1/completions"
        )
    if not messages:
        raise ValueError("messages is empty; it must have at least 1 message")
    if continue_final_message and add_generation_prompt:
        raise ValueError(
            "continue_final_message and add_generation_prompt are both true; set one of them to "
            "false"
        )
    return tokenizer.apply_chat_template(
        [_plain(index, message) for index, message in enumerate(messages)],
        chat_template=template,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        tokenize=False,
        **kwargs,
    )


def _plain(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose content is text: templates that know strings only are the most common.

    Source: vllm/entrypoints/chat_utils.py#L1541-L1600 (_parse_chat_message_content_parts) @ v0.22.1
    """
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ValueError(f"messages[{index}] has no role; add 'user', 'assistant' or 'system'")
    return {**message, "content": _flatten(index, message.get("content"))}


def _flatten(index: int, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ValueError(
            f"messages[{index}].content is {type(content).__name__}; it must be text, a list of "
            "parts, or null"
        )
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(
            part.get("text"), str
        ):
            raise ValueError(
                f"messages[{index}].content holds a part of type {kind!r}; this model takes text "
                "parts only"
            )
        texts.append(part["text"])
    return "\n".join(texts)
