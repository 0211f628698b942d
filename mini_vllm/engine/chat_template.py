"""From messages to a prompt: what clients send, put into the shape that chat templates know."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.engine.chat_turns import render_turns
from mini_vllm.errors import RequestError, show
from mini_vllm.multimodal.chat import check_messages, part_text

logger = logging.getLogger(__name__)


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    template: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    **kwargs: Any,
) -> str:
    """The conversation as text.

    Args:
        tokenizer: of the ``transformers`` kind.
        messages: OpenAI's, whose content may be text, a list of text parts, or None.
        template: Jinja, instead of the model's own: the processor's of a model that sees, unless
            there are tools; else the tokenizer's.
        tools: what the model may call, for templates that tell it.
        add_generation_prompt: end with the beginning of the assistant's turn.
        continue_final_message: leave the last message open, for the model to go on with.

    Raises:
        ValueError: for a message without a role, an argument or content of a wrong type, no
            template, or one that fails.

    Source: vllm/renderers/hf.py#L265-L314 (resolve_chat_template) @ v0.22.1
    """
    if tokenizer is None:
        raise RequestError(
            "messages need a tokenizer, and none is loaded; send token ids instead",
            param="messages",
        )
    if template is None and tokenizer.chat_template is None:
        raise ValueError(
            "the tokenizer has no chat template; start the server with --chat-template FILE, or "
            "send a prompt to /v1/completions"
        )
    check_messages(messages)
    if not messages:
        raise RequestError("messages is empty; it must have at least 1 message", param="messages")
    if not isinstance(template, str | None):
        raise ValueError(f"chat_template is {show(template)}; it must be a text in Jinja")
    is_list = isinstance(tools, Sequence) and all(isinstance(tool, Mapping) for tool in tools)
    if not (tools is None or is_list):
        raise ValueError(f"tools is {show(tools)}; it must be a list of mappings, one a tool")
    if template is None and tools is None:  # only the tokenizer may have one that knows of tools
        template = getattr(tokenizer, "processor_chat_template", None)
    plain = [_plain(index, message) for index, message in enumerate(messages)]
    in_parts = False

    def render(turns: Sequence[Mapping[str, Any]], opens_a_turn: bool) -> str:
        turns = list(map(_in_parts, turns)) if in_parts else turns
        text: str = tokenizer.apply_chat_template(
            turns,
            chat_template=template,
            tools=tools,
            add_generation_prompt=opens_a_turn,
            tokenize=False,
            **kwargs,
        )
        return text

    try:
        in_parts = wants_parts(tokenizer, template, tools)
        if any(message["role"] == "developer" for message in plain):
            plain = _known_roles(plain, tokenizer.get_chat_template(template, tools))
        return render_turns(render, plain, add_generation_prompt, continue_final_message)
    except ValueError:
        raise
    except RecursionError:  # it writes tools and arguments as JSON
        raise ValueError(
            "the messages, the tools or the template's arguments nest too deeply to be written; "
            "let them nest less: some 300 levels of lists and objects are always taken"
        ) from None
    except Exception as error:  # a template is a program, and may fail in any way
        line = getattr(error, "lineno", None)  # of what is no Jinja
        where = f" in line {line}" if line else ""
        raise ValueError(
            f"the chat template fails with {type(error).__name__}{where}: {error}; mend the "
            "template, or send messages that it knows"
        ) from error


PROBE = "what a template makes of this content"
MOST_PROBED = 64
_probed: dict[str, bool] = {}


def wants_parts(tokenizer: Any, template: str | None, tools: Any = None) -> bool:
    """Whether a template writes contents that are lists of parts, and no texts: it loops over them.
    A text would be looped over letter by letter, and nothing of it be written.

    Source: vllm/renderers/hf.py#L432-L450 (_detect_content_format) @ v0.22.1, which reads the
    template's syntax.
    """
    find = getattr(tokenizer, "get_chat_template", None)
    if find is None:  # it has its own way
        return False
    template = str(find(template, tools))
    if template not in _probed:
        if len(_probed) >= MOST_PROBED:
            _probed.clear()

        def writes(content: Any) -> bool:
            turns = [{"role": "user", "content": content}]
            try:
                text = tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False)
            except Exception:  # a template is a program, and may fail in any way
                return False
            return PROBE in text

        parts = [{"type": "text", "text": PROBE}]
        _probed[template] = not writes(PROBE) and writes(parts)
    return _probed[template]


def _in_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    text = message.get("content")
    if not isinstance(text, str):
        return message
    return {**message, "content": [{"type": "text", "text": text}] if text else []}


def _known_roles(messages: list[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """What developers say is said by the system, first and in one message, if a template does not
    know them: many write any role as it is, and the model has seen none of that name."""
    if "'developer'" in template or '"developer"' in template:
        return messages
    orders = [m["content"] for m in messages if m["role"] in ("system", "developer")]
    others = [m for m in messages if m["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(filter(None, orders))}, *others]


def _plain(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose content is text: templates that know strings only are the most common.

    Source: vllm/entrypoints/chat_utils.py#L1541-L1600 (_parse_chat_message_content_parts) @ v0.22.1
    """
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(
            f"messages[{index}] has no role; add 'user', 'assistant' or 'system'", param="messages"
        )
    plain = {**message, "content": flatten(index, message.get("content"))}
    thought = plain.pop("reasoning_content", None)  # its former name, which many templates read
    thought = plain.pop("reasoning", None) or thought
    if thought is not None:
        plain["reasoning"] = plain["reasoning_content"] = _reasoning(index, thought)
    calls = plain.pop("tool_calls", None)
    if calls:
        plain["tool_calls"] = [_with_arguments(index, call) for call in calls]
    return plain


def _reasoning(index: int, thought: Any) -> str:
    """What an assistant's message says that it thought.

    Source: vllm/entrypoints/chat_utils.py#L1733-L1767 (_parse_chat_message_content) @ v0.22.1
    """
    if not isinstance(thought, str):
        raise RequestError(
            f"messages[{index}].reasoning is {show(thought)}; it must be a text",
            param="messages",
            value=thought,
        )
    return thought


def _with_arguments(index: int, call: Any) -> dict[str, Any]:
    """A call whose arguments are an object again: templates write them as JSON themselves. Some
    clients and models write JSON in a text, so a text in the text is read, too.

    Source: vllm/entrypoints/chat_utils.py#L1803-L1842 (_postprocess_messages) @ v0.22.1
    """
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(
            f"messages[{index}].tool_calls holds a call without function.name; add it",
            param="messages",
        )
    arguments = function.get("arguments")
    try:
        while isinstance(arguments, str):  # each text is shorter than the one that held it
            arguments = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        pass  # a call that was cut: refused, it would end its conversation for good
    if not isinstance(arguments, Mapping):
        if arguments is not None:
            logger.warning("messages[%d].tool_calls: arguments are no object; left out", index)
        arguments = {}
    return {**call, "function": {**function, "arguments": arguments}}


def flatten(index: int, content: Any) -> str:
    """The text of a message's content; parts stand one a line."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(
            f"messages[{index}].content is {type(content).__name__}; it must be text, a list of "
            "parts, or null",
            param="messages",
        )
    texts = []
    for part in content:
        text = part_text(part)
        if text is None:
            raise RequestError(
                f"messages[{index}].content holds the part {show(part)}; this model takes text "
                "only: 'type': 'text' with a 'text'",
                param="messages",
            )
        texts.append(text)
    return "\n".join(texts)
