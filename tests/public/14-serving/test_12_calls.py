"""Task 14.12: text that may turn out to be a call."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect

CALL = '<tool_call>{"name": "w", "arguments": {"a": "}</tool_call>"}}</tool_call>'

ARGUMENTS = '{"a": "}</tool_call>"}'


def parsed(scene: Any, *pieces: str) -> Any:
    return scene.parse_pieces(list(pieces))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("so <tool", 5), ("so <", 1), ("so", 0), ("", 0), ("<<", 1), ("<tool_call>", 0),
     ("a<tool_call", 10)],
)  # fmt: skip
def test_14_12_what_may_become_a_tag(text: str, expected: int) -> None:
    """As many last characters as may be the beginning of the tag, and never the whole tag."""
    from mini_vllm.entrypoints.openai.tool_parser import partial_tag_overlap

    expect(partial_tag_overlap(text, "<tool_call>"), expected, at=repr(text))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ('{"name": "w"', ""),
        ('{"name": "w"}', "{}"),
        ('{"name": "w", "arguments"', ""),
        ('{"name": "w", "arguments": ', ""),
        ('{"name": "w", "arguments": {"a": 1', '{"a": 1'),
        ('{"name": "w", "arguments": {"a": {}}', '{"a": {}}'),
        ('{"name": "w", "arguments": {"a": 1} }', '{"a": 1}'),
        ('{"name": "w", "arguments": {}}', "{}"),
        ('{"arguments": {"a": 1}, "name": "w"}', '{"a": 1}'),
        ('{"name": "arguments"', ""),
        ('{"name": "w", "note": {"arguments": {"b": 2}', ""),
        ('{"name": "w", "parameters": {"a": 1}}', '{"a": 1}'),
        (r'{"name": "w", "arguments": "{\"a\": 1', ""),
        (r'{"name": "w", "arguments": "{\"a\": 1}"', '{"a": 1}'),
    ],
)
def test_14_12_arguments_as_far_as_they_are_certain(call: str, expected: str) -> None:
    """The model's own text of the value, without the brace that closes the call."""
    from mini_vllm.entrypoints.openai.json_object import ObjectReader
    from mini_vllm.entrypoints.openai.tool_parser import find_arguments

    expect(find_arguments(ObjectReader(call)), expected, at=call)


def test_14_12_plain_text(scene: Any) -> None:
    """Text goes out as it comes, piece by piece."""
    seen = parsed(scene, "Hel", "lo ", "you")
    expect(
        [seen["content"], seen["deltas"]], ["Hello you", [["content"]] * 3], at="no tag anywhere"
    )


def test_14_12_a_tag_is_held_back(scene: Any) -> None:
    """What may be a tag waits; if it is none, it comes with the next piece."""
    seen = parsed(scene, "a <tool", "box", " b")
    expect(
        [seen["content"], seen["deltas"][0]],
        ["a <toolbox b", ["content"]],
        at="<tool is no tag after all",
    )
    expect(parsed(scene, "a <", "tool_")["content"], "a <tool_", at="the text ends within a tag")


def test_14_12_a_call_in_one_piece(scene: Any) -> None:
    """Content before it, then its name once, with an id, then its arguments."""
    seen = parsed(scene, "I look. " + CALL)
    expect(seen["content"], "I look. ", at="content")
    expect(seen["calls"], {0: {"names": ["w"], "arguments": ARGUMENTS, "ids": 1}}, at="the call")


def test_14_12_two_calls_letter_by_letter(scene: Any) -> None:
    """However the text is cut, it adds up to the same."""
    text = "ok " + CALL + CALL.replace('"w"', '"v"')
    seen = parsed(scene, *text)
    expect(seen["content"], "ok ", at="letter by letter")
    expect({i: (c["names"], c["arguments"]) for i, c in seen["calls"].items()},
           {0: (["w"], ARGUMENTS), 1: (["v"], ARGUMENTS)}, at="letter by letter")  # fmt: skip


def test_14_12_text_around_calls(scene: Any) -> None:
    """Content is what stands outside of calls, also what looked like one and was none."""
    text = f"a {CALL} b <tool_call>c {CALL}"
    for pieces in ([text], list(text)):
        seen = parsed(scene, *pieces)
        expect(seen["content"], "a b <tool_call>c ", at="content")
        expect([call["names"] for call in seen["calls"].values()], [["w"], ["w"]], at="the calls")
