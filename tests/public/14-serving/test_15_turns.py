"""Task 14.15: from messages to a text, and what of it the prefix cache finds again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.engine.chat_turns import render_turns, shared_blocks

Messages = Sequence[Mapping[str, Any]]
HI = {"role": "user", "content": "Hi"}
HELLO = {"role": "assistant", "content": "Hello, "}


def template(change: Callable[[str], str] = lambda content: content) -> Any:
    """A template in the way of ChatML; `change` is what it does to contents."""

    def render(messages: Messages, opens_a_turn: bool) -> str:
        turns = [f"<{one['role']}>{change(one['content'])}<end>" for one in messages]
        return "".join(turns) + "<assistant>" * opens_a_turn

    return render


plain, stripping = template(), template(str.strip)


def refused(**options: Any) -> bool:
    """Whether render_turns raises ValueError."""
    options = {"render": plain, "messages": [HI], "add_generation_prompt": False} | options
    try:
        render_turns(**options)
    except ValueError:
        return True
    return False


def test_14_15_a_turn_is_opened() -> None:
    """By default the text ends with the beginning of the assistant's turn."""
    expect(render_turns(plain, [HI]), "<user>Hi<end><assistant>", at="one message")


def test_14_15_no_turn_is_opened() -> None:
    """add_generation_prompt=False: only what was said."""
    text = render_turns(plain, [HI, HELLO], add_generation_prompt=False)
    expect(text, "<user>Hi<end><assistant>Hello, <end>", at="two messages, no generation prompt")


def test_14_15_the_last_message_stays_open() -> None:
    """continue_final_message: the text ends with the content, spaces included."""
    text = render_turns(plain, [HI, HELLO], False, continue_final_message=True)
    expect(text, "<user>Hi<end><assistant>Hello, ", at="the last message stays open")


def test_14_15_a_template_that_strips() -> None:
    """Then the spaces behind the content go, as those of a whole turn would."""
    text = render_turns(stripping, [HI, HELLO], False, continue_final_message=True)
    expect(text, "<user>Hi<end><assistant>Hello,", at="a template that strips contents")


@pytest.mark.parametrize("content", ["Hi", "<end>", "", "Hi<end><assistant>Hi"])
def test_14_15_contents_that_look_like_the_template(content: str) -> None:
    """What a content says is text: the cut is where the last content ends."""
    messages = [HI, {"role": "assistant", "content": content}]
    text = render_turns(plain, messages, False, continue_final_message=True)
    expect(text, f"<user>Hi<end><assistant>{content}", at=f"the last content is {content!r}")


def test_14_15_messages_are_not_changed() -> None:
    """The caller's messages are its own."""
    messages = [dict(HI), dict(HELLO)]
    render_turns(plain, messages, False, continue_final_message=True)
    expect(messages, [HI, HELLO], at="the messages afterwards")


def test_14_15_other_fields_reach_the_template() -> None:
    """A message may have more than a role and a content."""
    seen: list[Any] = []

    def render(messages: Messages, opens_a_turn: bool) -> str:
        seen.extend(message.get("name") for message in messages)
        return plain(messages, opens_a_turn)

    messages = [HI, HELLO | {"name": "fox"}]
    render_turns(render, messages, False, continue_final_message=True)
    expect(seen, [None, "fox"], at="names that the template saw")


def test_14_15_both_at_once_is_refused() -> None:
    """A turn cannot be open and followed by another one."""
    at = "continue_final_message and add_generation_prompt: does it raise ValueError?"
    expect(refused(add_generation_prompt=True, continue_final_message=True), True, at=at)


@pytest.mark.parametrize(
    "messages", [[], [HI, {"role": "assistant"}], [HI, {"role": "assistant", "content": None}]]
)
def test_14_15_nothing_to_continue_is_refused(messages: Any) -> None:
    """The last message must have a text."""
    at = f"continue_final_message with {messages}: does it raise ValueError?"
    expect(refused(messages=messages, continue_final_message=True), True, at=at)


@pytest.mark.parametrize("change", [lambda content: "", lambda content: content[3:]])
def test_14_15_a_content_that_is_not_written_is_refused(change: Any) -> None:
    """The template leaves out the content, or a part of it: there is nothing to go on with."""
    at = "a template that does not write all of the content: does it raise ValueError?"
    options = {"render": template(change), "messages": [HI, HELLO]}
    expect(refused(**options, continue_final_message=True), True, at=at)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (range(12), [*range(12), 50], 3),
        (range(12), range(12), 2),
        (range(14), [*range(14), 50, 51], 3),
        (range(12), [*range(7), 50, *range(8, 20)], 1),
        (range(12), [50, *range(1, 20)], 0),
        (range(12), [50, *range(12)], 0),
        (range(12), range(8), 1),
        (range(12), range(9), 2),
        (range(7), range(30), 1),
        ([], range(9), 0),
        (range(9), [3], 0),
    ],
)
def test_14_15_blocks_found_again(before: Any, after: Any, expected: int) -> None:
    """Blocks of 4: full, the same from the beginning, and never that of the last token."""
    at = f"before {list(before)}, after {list(after)}, 4 tokens a block"
    expect(shared_blocks(list(before), list(after), 4), expected, at=at)


@pytest.mark.parametrize("changed", [None, 0, 5, 6, 17, 23])
def test_14_15_the_engine_finds_as_many(changed: int | None) -> None:
    """Blocks: the engine's own cache, asked for a prompt that differs in one token."""
    from mini_vllm.core.kv_cache_manager import KVCacheManager
    from mini_vllm.request import Request

    manager = KVCacheManager(24, 4, max_model_len=64)
    before, after = list(range(100, 124)), list(range(100, 124))
    if changed is not None:
        after[changed] = 7
    first = Request("first", before)
    first.set_block_hasher(manager.block_hasher)
    manager.allocate_slots(first, len(before), 0, manager.get_computed_blocks(first)[0])
    second = Request("second", after)
    second.set_block_hasher(manager.block_hasher)
    found = manager.get_computed_blocks(second)[1] // 4
    at = f"24 tokens, blocks of 4; another token at {changed}"
    expect(shared_blocks(before, after, 4), found, at=at)
