"""Messages become one text, turn by turn, and what of it the prefix cache finds again.

::

    user: Hi                            <|im_start|>user⏎Hi<|im_end|>⏎
    assistant: Hello                    <|im_start|>assistant⏎Hello<|im_end|>⏎

    add_generation_prompt               ... <|im_start|>assistant⏎        a new turn is opened
    continue_final_message              ... <|im_start|>assistant⏎Hello   the last stays open

A *template* writes the turns. It is the model's own, for the model was trained on such texts.

Source: vllm/renderers/hf.py#L613-L680 (safe_apply_chat_template) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Render = Callable[[Sequence[Mapping[str, Any]], bool], str]
"""A template: messages, and whether to open a turn of the assistant behind them, to a text."""

MARK = "FINAL_MESSAGE_ENDS_HERE "
"""Stands behind the content of a message that is to stay open. Its last character is a space."""


def render_turns(
    render: Render,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> str:
    """The conversation as text, ready for the model to go on with.

    With ``continue_final_message`` the text ends with the content of the last message, so that the
    model goes on in the middle of it. What a template writes behind a content, such as
    ``<|im_end|>``, is known to the template alone. So the last content is rendered with ``MARK`` at
    its end, and the text is cut before the last ``MARK``. Some templates strip contents; then the
    space of ``MARK`` is gone, and the space before it goes as well: a content that ends with spaces
    would have lost them. No message is changed.

    Raises:
        ValueError: if both are asked for; if there is no last message with a text as ``"content"``;
            or if that text, without spaces around it, does not stand in the rendered one.

    Source: vllm/renderers/hf.py#L613-L680 (safe_apply_chat_template) @ v0.22.1. Upstream leaves the
    cut to transformers.
    """
    # TODO 14.15
    raise NotImplementedError(
        "TODO 14.15: write render_turns in labs/14-serving/chat_turns.py"
        " (phase 14, 02-mini-build.md#task-15)"
    )


def shared_blocks(before: Sequence[int], after: Sequence[int], block_size: int) -> int:
    """How many blocks of the prompt ``before`` the prompt ``after`` finds in the prefix cache.

    Both are token ids. Only full blocks are cached, and a block is found only if all tokens up to
    its end are the same. The last token of a prompt is always computed, so the block that it is in
    is not taken.

    Source: vllm/v1/core/kv_cache_manager.py#L194-L234 (KVCacheManager.get_computed_blocks)
    @ v0.22.1
    """
    # TODO 14.15
    raise NotImplementedError(
        "TODO 14.15: write shared_blocks in labs/14-serving/chat_turns.py"
        " (phase 14, 02-mini-build.md#task-15)"
    )
