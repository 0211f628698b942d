"""From messages to a prompt: what clients send, put into the shape that chat templates know."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mini_vllm.engine.chat_turns import render_turns
from mini_vllm.errors import RequestError, bad_value, show
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
    if template is None and tools is None:  # only the tokenizer may have one for tools
        template = getattr(tokenizer, "processor_chat_template", None)

    def render(turns: Sequence[Mapping[str, Any]], opens_a_turn: bool) -> str:
        turns = [_in_form(turn, wanted) for turn in turns]
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
        wanted = form_of(tokenizer, template, tools, any(m.get("tool_calls") for m in messages))
        plain = [_plain(index, message, wanted) for index, message in enumerate(messages)]
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
            "template, or send messages of the form that it takes"
        ) from error


PROBE = "what a template makes of this content"
MOST_PROBED = 64
_probed: dict[tuple[str, bool], Form] = {}


@dataclass(frozen=True)
class Form:
    """The form of messages that a template expects; the defaults fit most."""

    parts: bool = False
    """A content is a list of parts. A text would be looped over letter by letter."""
    text_arguments: bool = False
    """Arguments of calls are JSON in a text, put together with others."""


def form_of(tokenizer: Any, template: str | None, tools: Any, has_calls: bool) -> Form:
    """The form that a template writes. Each template is tested once, by rendering messages of each
    form; one that renders none gets the default.

    Source: vllm/renderers/hf.py#L432-L450 (_detect_content_format) @ v0.22.1, which reads the
    template's syntax, not by calls.
    """
    find = getattr(tokenizer, "get_chat_template", None)
    if find is None:  # a tokenizer without templates
        return Form()
    template = str(find(template, tools))
    if (template, has_calls) not in _probed:
        if len(_probed) >= MOST_PROBED:
            _probed.clear()
        ask = partial(_writes, tokenizer, template, tools)
        form = next(filter(ask, (Form(), Form(parts=True))), Form())
        forms = (form, replace(form, text_arguments=True)) if has_calls else ()
        _probed[template, has_calls] = next(filter(partial(ask, has_calls=True), forms), form)
    return _probed[template, has_calls]


def _writes(tokenizer: Any, template: str, tools: Any, form: Form, has_calls: bool = False) -> bool:
    """Whether it writes contents, and calls with arguments, of this form."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": PROBE}]
    if has_calls:
        function = {"name": "f", "arguments": {"a": PROBE}}
        calls = [{"type": "function", "id": "123456789", "function": function}]
        turns.append({"role": "assistant", "tool_calls": calls})
    for first in ([], [{"role": "system", "content": "x"}]):  # some ask for a system message
        plain = [_in_form(_plain(0, turn, form), form) for turn in [*first, *turns]]
        try:
            text = tokenizer.apply_chat_template(
                plain, chat_template=template, tools=tools, tokenize=False
            )
        except Exception:  # a template is a program, and may fail in any way
            continue
        if text.count(PROBE) >= len(turns):
            return True
    return False


def _in_form(message: Mapping[str, Any], form: Form) -> Mapping[str, Any]:
    text = message.get("content")
    if not isinstance(text, str) or not form.parts:
        return message
    return {**message, "content": [{"type": "text", "text": text}] if text else []}


def _known_roles(messages: list[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """Turn messages of developers into one system message at the front, if a template does not know
    their role: many templates write any role as it is, and the model has seen none of that name."""
    if "'developer'" in template or '"developer"' in template:
        return messages
    orders = [m["content"] for m in messages if m["role"] in ("system", "developer")]
    others = [m for m in messages if m["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(filter(None, orders))}, *others]


def _plain(index: int, message: Mapping[str, Any], form: Form) -> dict[str, Any]:
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
        plain["tool_calls"] = [_with_arguments(index, call, form.text_arguments) for call in calls]
    return plain


def _reasoning(index: int, thought: Any) -> str:
    """The reasoning text of an assistant's message.

    Source: vllm/entrypoints/chat_utils.py#L1733-L1767 (_parse_chat_message_content) @ v0.22.1
    """
    if not isinstance(thought, str):
        raise RequestError(
            f"messages[{index}].reasoning is {show(thought)}; it must be a text",
            param="messages",
            value=thought,
        )
    return thought


def _with_arguments(index: int, call: Any, as_text: bool) -> dict[str, Any]:
    """A call whose arguments are an object again: templates write them as JSON themselves. Some
    clients and models write JSON in a text, so a text in the text is read, too.

    With `as_text` they are the client's text, or the JSON of what was read.

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
    if as_text:
        given = function.get("arguments")
        is_json = isinstance(given, str) and given.lstrip().startswith("{") and arguments
        arguments = given if is_json else json.dumps(arguments, ensure_ascii=False)
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


def read_template(given: str | Path | None, option: str) -> str | None:
    """A template from a file, or `given` itself if it has a brace.

    Args:
        option: the name under which it was given, for messages.

    Raises:
        ValueError: for a file that cannot be read, or a text that is no template.
    """
    if given is None:
        return None
    if isinstance(given, str) and "{" in given:
        _check_template(given, "the template", option)
        return given
    if not isinstance(given, str | Path):
        raise bad_value(option, given, "it must be a file, or a template in Jinja")
    try:
        text = Path(given).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"{option}: there is no file {given}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{option}: {given} cannot be read: {error}") from error
    _check_template(text, str(given), option)
    return text


def _check_template(text: str, where: str, option: str) -> None:
    """Raises ValueError for a text that is not valid Jinja, before the first chat needs it."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        render_jinja_template([[{"role": "user", "content": ""}]], chat_template=text)
    except TemplateSyntaxError as error:
        raise ValueError(
            f"{option}: {where}, line {error.lineno}: {error.message}; mend that line, or "
            "leave the option out for the model's own template"
        ) from error
    except Exception:  # it may lack variables here that a chat has, such as the names of tokens
        return
