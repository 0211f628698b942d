"""Conversations and templates drawn at random, and prompts that differ anywhere."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=60)
HERE = "mini_vllm.engine.chat_turns:"
TEMPLATE = "labkit.inside.turns:Template"
MARK = "FINAL_MESSAGE_ENDS_HERE "
"""The engine's own, which a message may hold too."""
parts = st.sampled_from(["Hi", " ", "\n", "<end>", "<user>", MARK, "a", "é", "  "])
contents = st.lists(parts, max_size=5).map("".join)
conversations = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "tool"]), contents), min_size=1, max_size=4
).map(lambda turns: [{"role": role, "content": content, "name": "fox"} for role, content in turns])


def written(messages: list[dict[str, Any]], strips: str) -> str:
    """The turns as the template writes them, but for what stands behind the last content."""
    strip = {"": str, "both": str.strip, "left": str.lstrip}[strips]
    texts = [f"<{one['role']}fox>{strip(one['content'])}" for one in messages]
    return "<end>\n".join(texts)


@many
@given(
    messages=conversations,
    strips=st.sampled_from(["", "both", "left"]),
    how=st.sampled_from(["open a turn", "as it is", "go on"]),
)
@example([{"role": "user", "content": "Hi  ", "name": "fox"}], "both", "go on")
@example([{"role": "user", "content": text, "name": "fox"} for text in (MARK, "a")], "", "go on")
def test_14_15_any_conversation(
    subject: Any, messages: list[dict[str, Any]], strips: str, how: str
) -> None:
    """Opened, as it is, or left open; whatever the contents say, and none of them changed."""
    p = Program()
    given_messages = [p.call("builtins:dict", one) for one in messages]
    template = p.new(TEMPLATE, strips=strips)
    flags = {"add_generation_prompt": how == "open a turn"}
    if how == "go on":
        flags["continue_final_message"] = True
    p.see(p.call(f"{HERE}render_turns", template, given_messages, **flags))
    p.see(given_messages)
    p.see(template.num_calls)
    text = written(messages, strips)
    if how == "go on":
        text = text.rstrip() if strips == "both" else text
    else:
        text += "<end>\n" + "<assistant>" * (how == "open a turn")
    assert subject.run(p) == [text, messages, 1]


@many
@given(messages=conversations, first=st.sampled_from([1, 2, 4, 99]))
def test_14_15_a_template_that_cuts(subject: Any, messages: Any, first: int) -> None:
    """It leaves out the beginning of contents, or all of them: refused."""
    content = f"x{first}y" + messages[-1]["content"].strip() + "z"
    messages = [*messages[:-1], messages[-1] | {"content": content}]
    p = Program()
    template = p.new(TEMPLATE, cuts=first)
    p.refuse("ValueError", p.name(f"{HERE}render_turns"), template, messages, False, True)
    assert subject.run(p) == []


@pytest.mark.parametrize("content", [None, 5, ["a"], "missing"])
def test_14_15_no_text_to_go_on_with(subject: Any, content: Any) -> None:
    """No text, or both wishes at once: ValueError; without the wish the template has its way."""
    last = {"role": "assistant"} | ({} if content == "missing" else {"content": content})
    p = Program()
    render = p.name(f"{HERE}render_turns")
    p.refuse("ValueError", render, p.new(TEMPLATE), [last], False, True)
    p.refuse("ValueError", render, p.new(TEMPLATE), [], False, True)
    p.refuse("ValueError", render, p.new(TEMPLATE), [{"role": "a", "content": "b"}], True, True)
    p.see(p.call(f"{HERE}render_turns", p.new(TEMPLATE), [], False, False))
    assert subject.run(p) == [""]


@pytest.mark.parametrize("content", ["", "Hi", "Hi "])
def test_14_15_contents_and_nothing_else(subject: Any, content: str) -> None:
    """A template without tags: the content may be the whole text. One that writes nothing of it is
    refused, also if there is nothing to write."""
    p = Program()
    messages = [{"role": "user", "content": content}]
    render = f"{HERE}render_turns"
    p.see(p.call(render, p.new(TEMPLATE, bare=True), messages, False, True))
    nothing = p.new(TEMPLATE, cuts=99)
    p.refuse("ValueError", p.name(render), nothing, messages, False, True)
    assert subject.run(p) == [content]


def by_hand(before: list[int], after: list[int], size: int) -> int:
    """Block by block: the whole prompt up to its end must be the same, and a token must be left."""
    count = 0
    while (
        (count + 1) * size <= len(before)
        and (count + 1) * size < len(after)
        and before[: (count + 1) * size] == after[: (count + 1) * size]
    ):
        count += 1
    return count


@many
@given(
    common=st.lists(st.integers(0, 2), max_size=40),
    before=st.lists(st.integers(0, 2), max_size=20),
    after=st.lists(st.integers(0, 2), max_size=20),
    size=st.integers(1, 9),
)
def test_14_15_any_two_prompts(
    subject: Any, common: list[int], before: list[int], after: list[int], size: int
) -> None:
    """Prompts with a common beginning of any length, and token 0 among them."""
    p, expected = Program(), []
    for one, two in ((before, after), (after, before), (before, before), (before, [])):
        pair = [*common, *one], [*common, *two]
        if pair[1]:
            p.see(p.call(f"{HERE}shared_blocks", *pair, size))
            expected.append(by_hand(*pair, size))
    assert subject.run(p) == expected
