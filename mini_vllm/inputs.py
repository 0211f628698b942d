"""The forms of a prompt.

Source: vllm/inputs/llm.py#L99-L117 (TokensPrompt) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict


class _Prompt(TypedDict):
    multi_modal_data: NotRequired[Mapping[str, Any]]
    """``{"image": image}`` or ``{"image": [image, ...]}``; the prompt has one ``<|image_pad|>`` for
    each."""
    mm_processor_kwargs: NotRequired[Mapping[str, Any]]
    """Options of the image processor for this prompt alone, such as ``{"max_pixels": 200704}``."""
    cache_salt: NotRequired[str]
    """Only requests with the same salt share cached prefixes."""


class TextPrompt(_Prompt):
    prompt: str


class TokensPrompt(_Prompt):
    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]
    """The original text of the ids; it is only copied to the output."""


PromptType = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a mapping like :class:`TextPrompt` or :class:`TokensPrompt`."""


def as_tokens(prompt: PromptType, token_ids: list[int]) -> PromptType:
    """The same prompt as token ids; its text and other entries are kept."""
    more = dict(prompt) if isinstance(prompt, Mapping) else {}
    text = text_of(prompt)
    return more | {"prompt_token_ids": token_ids} | ({} if text is None else {"prompt": text})


def num_ids(prompt: PromptType) -> int:
    """The number of token ids of a prompt; 0 for one that is text only."""
    ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else prompt
    return 0 if ids is None or isinstance(ids, str) else len(ids)


def text_of(prompt: PromptType) -> str | None:
    """The text of a prompt, if it has one."""
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return text if isinstance(text, str) else None
