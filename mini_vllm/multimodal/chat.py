"""The images of a conversation: parts of a message that are not text.

::

    {"type": "text",      "text": "What is this?"}
    {"type": "image_pil", "image_pil": picture}
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0..."}}

A message becomes text with a mark in place of each image, so that any chat template can format it.
The mark is random, so no message can contain it. A placeholder in a message's text stays text.

Source: vllm/entrypoints/chat_utils.py#L1541-L1600 (_parse_chat_message_content_parts) @ v0.22.1
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.errors import RequestError, bad_value, show
from mini_vllm.multimodal.media import MediaURL
from mini_vllm.multimodal.processing import PLACEHOLDER

PLACE_IN_CHAT = f"<|vision_start|>{PLACEHOLDER}<|vision_end|>"
"""The text in place of an image in a message.

Source: vllm/model_executor/models/qwen3_vl.py#L1637-L1644
(Qwen3VLForConditionalGeneration.get_placeholder_str) @ v0.22.1
"""
PICTURE = f"<|picture {secrets.token_hex(16)}|>"
"""The mark of an image until the conversation is tokenized; random in each process."""
_PLACE = PLACE_IN_CHAT.replace(PLACEHOLDER, PICTURE)
TEXT_PARTS = {
    "text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal",
    "thinking": "thinking",
}  # fmt: skip
"""Types of text parts, and the field with the text."""


def take_images(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[Any]]:
    """The messages with text as content, and their images in order.

    Nothing is decoded or fetched here. The input processor does that, and can refuse one prompt of
    many.

    Raises:
        ValueError: unless it is a list of messages whose parts are texts and images.
    """
    check_messages(messages)
    images: list[Any] = []
    plain = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, Sequence) and not isinstance(content, str):
            content = _as_text(content, images)
        plain.append({**message, "content": content})
    return plain, images


def check_messages(messages: Any) -> None:
    """Raises ValueError unless it is a list of mappings. Their entries are checked later."""
    if not isinstance(messages, list | tuple):
        raise bad_value("messages", messages, "it must be a list")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(
                f"messages[{index}] is {show(message)}; it must be a mapping such as "
                "{'role': 'user', 'content': '...'}",
                param="messages",
                value=message,
            )


def _as_text(parts: Sequence[Any], images: list[Any]) -> str:
    """Images become marks; a line break separates two text parts, nothing separates text and
    image."""
    text, follows_text = "", False
    for part in parts:
        kind = _kind_of(part) if isinstance(part, Mapping) else None
        words = part_text(part)
        if words is not None:
            text += ("\n" if follows_text else "") + words
        elif kind == "image_pil":
            images.append(part.get("image_pil"))
            text += _PLACE
        elif kind in ("image_url", "input_image"):
            url = part.get("image_url")
            images.append(MediaURL(url.get("url") if isinstance(url, Mapping) else url))
            text += _PLACE
        else:
            raise ValueError(
                f"a message holds the part {show(part)}; it must be of type text, image_pil or "
                "image_url"
            )
        follows_text = words is not None
    return text


def _kind_of(part: Mapping[str, Any]) -> Any:
    """The type of a part; without one, it follows from the part's fields."""
    has = next((name for name in ("image_url", "image_pil") if name in part), "text")
    return part.get("type") or has


def encode_chat(
    tokenizer: Any, text: str, sees: bool, add_special_tokens: bool = False
) -> list[int]:
    """Token ids of a conversation that a template has formatted.

    Args:
        sees: whether the model takes images. Then a placeholder in a message's text is encoded by
            its letters, because its own token would stand for an image.
    """
    if not sees or PLACEHOLDER not in text:
        return _encode(tokenizer, with_placeholders(text), add_special_tokens)
    half = len(PLACEHOLDER) // 2
    spelled = [
        token
        for letters in (PLACEHOLDER[:half], PLACEHOLDER[half:])
        for token in _encode(tokenizer, letters, False)
    ]
    ids: list[int] = []
    for index, piece in enumerate(text.split(PLACEHOLDER)):
        ids += spelled if index else []
        ids += _encode(tokenizer, with_placeholders(piece), add_special_tokens and not index)
    return ids


def with_placeholders(text: str) -> str:
    """A conversation as text, with the placeholder in place of each image."""
    return text.replace(PICTURE, PLACEHOLDER)


def _encode(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return ids


def part_text(part: Any) -> str | None:
    """The text of a part, which may be a plain string; None if it is something else."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return None
    kind = part.get("type", "text")
    text = part.get(TEXT_PARTS.get(kind, "")) if isinstance(kind, str) else None
    return text if isinstance(text, str) else None
