"""Task 14.14: what a model thinks, and what it answers."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.reasoning import Beginning

INSIDE, OUTSIDE, BEHIND = Beginning.INSIDE, Beginning.OUTSIDE, Beginning.BEHIND


def read(pieces: list[str], beginning: Beginning = INSIDE, **tags: Any) -> list[dict[str, str]]:
    """The news of each piece, and of the end."""
    from mini_vllm.entrypoints.openai.reasoning_parser import ReasoningParser
    from mini_vllm.reasoning import ReasoningFormat

    parser = ReasoningParser(ReasoningFormat(**tags), beginning)
    return [*(parser.extract_streaming(piece) for piece in pieces), parser.finish()]


def joined(news: list[dict[str, str]]) -> tuple[str, str]:
    """Both texts, put together again."""
    texts = [(one.get("reasoning", ""), one.get("content", "")) for one in news]
    return "".join(first for first, _ in texts), "".join(second for _, second in texts)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("Hm.</think>Yes.", "Hm.", "Yes."),
        ("<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("\n <think>\nHm.</think>\n\nYes.", "\nHm.", "\n\nYes."),
        ("Hm. Well", "Hm. Well", ""),
        ("<think></think>Yes.", "", "Yes."),
        (" Hm.</think>", " Hm.", ""),
        ("", "", ""),
    ],
)
def test_14_14_two_texts_of_an_answer_in_one_piece(text: str, reasoning: str, content: str) -> None:
    """The tags belong to neither text, nor does white space before the start tag."""
    expect(joined(read([text])), (reasoning, content), at=f"the answer {text!r}")


def test_14_14_what_may_become_the_end_tag_is_held_back() -> None:
    """And it is reasoning after all if it does not."""
    pieces = ["Oslo is", " north.</th", "inking", " on</think", ">Yes"]
    expected = [
        {"reasoning": "Oslo is"},
        {"reasoning": " north."},
        {"reasoning": "</thinking"},
        {"reasoning": " on"},
        {"content": "Yes"},
        {},
    ]
    expect(read(pieces), expected, at=f"the pieces {pieces}, then the end")


def test_14_14_both_texts_may_come_in_one_piece() -> None:
    """The reasoning up to the tag, and the content behind it; none of them is empty."""
    expect(read(["Hm.</think>Yes."])[0], {"reasoning": "Hm.", "content": "Yes."}, at="one piece")
    expect(read(["Hm.</think>"])[0], {"reasoning": "Hm."}, at="the piece ends with the tag")
    expect(read(["Hm.", "</think>Yes"])[1], {"content": "Yes"}, at="it begins with the tag")


def test_14_14_the_start_tag_may_come_in_pieces() -> None:
    """Nothing is told before it is known how the answer begins."""
    expected = [{}, {}, {}, {"reasoning": "Hm"}, {}]
    expect(read(["\n", "<th", "ink>", "Hm"]), expected, at="'\\n', '<th', 'ink>', 'Hm', the end")


def test_14_14_what_only_looks_like_a_start_tag_stays() -> None:
    """With the white space before it."""
    expect(read([" <th", "ere"]), [{}, {"reasoning": " <there"}, {}], at="' <th', 'ere', the end")


def test_14_14_what_is_held_comes_at_the_end() -> None:
    """An answer may be cut in the middle of a tag."""
    expect(read(["Hm.</thi"]), [{"reasoning": "Hm."}, {"reasoning": "</thi"}], at="'Hm.</thi'")
    expect(read(["<thi"]), [{}, {"reasoning": "<thi"}], at="'<thi', inside")
    expect(read(["<thi"], OUTSIDE), [{}, {"content": "<thi"}], at="'<thi', outside")


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("Yes.", "", "Yes."),
        (" Yes </think> no", "", " Yes </think> no"),
        ("<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("Yes <think>no</think>", "", "Yes <think>no</think>"),
    ],
)
def test_14_14_outside_only_a_start_tag_begins_a_thought(
    text: str, reasoning: str, content: str
) -> None:
    """A model that may think need not: without the tag all of it is content."""
    expect(joined(read([text], OUTSIDE)), (reasoning, content), at=f"{text!r}, begins outside")


def test_14_14_behind_the_reasoning_tags_are_text() -> None:
    """The prompt has closed the thought: nothing is held back."""
    expected = [{"content": "<think>"}, {"content": "a</thi"}, {"content": "nk>"}, {}]
    expect(read(["<think>", "a</thi", "nk>"], BEHIND), expected, at="begins behind the reasoning")


def test_14_14_content_may_hold_tags() -> None:
    """Only the first end tag counts."""
    text = "Hm.</think>a</think><think>b"
    expect(joined(read([text])), ("Hm.", "a</think><think>b"), at=repr(text))


def test_14_14_a_call_ends_the_reasoning_too() -> None:
    """Some models forget the end tag. The call's tag is content: its parser wants to see it."""
    call = "<tool_call>"
    for text, both in (
        (f"Hm.{call}x", ("Hm.", f"{call}x")),
        (f"Hm.</think>{call}x", ("Hm.", f"{call}x")),
        (f"Hm.{call}</think>", ("Hm.", f"{call}</think>")),
    ):
        expect(joined(read([text], call=call)), both, at=f"{text!r}, calls begin with {call}")
    pieces = ["Hm.<tool", "_x</th", "ink>Yes"]
    expected = [{"reasoning": "Hm."}, {"reasoning": "<tool_x"}, {"content": "Yes"}, {}]
    expect(read(pieces, call=call), expected, at=f"{pieces}: either tag may still come")


TEXTS = [
    ("<think>a</th</think>b<think>", {}),
    ("\n<think>a<tool_call>b</think>", {"call": "<tool_call>"}),
    ("a</thi</think></think>", {}),
    ("<<p>a</p</p>b", {"start": "<p>", "end": "</p>"}),
]


@pytest.mark.parametrize("beginning", list(Beginning), ids=lambda one: one.name.lower())
@pytest.mark.parametrize(("text", "tags"), TEXTS, ids=[text.strip() for text, _ in TEXTS])
def test_14_14_every_cut_gives_the_same_two_texts(
    text: str, tags: dict[str, str], beginning: Beginning
) -> None:
    """In one piece, in two at every place, and letter by letter."""
    whole = joined(read([text], beginning, **tags))
    cuts = [[text[:place], text[place:]] for place in range(len(text) + 1)] + [list(text)]
    for pieces in cuts:
        at = f"the pieces {pieces}, {beginning.value}"
        expect(joined(read(pieces, beginning, **tags)), whole, at=at, in_one_piece=whole)


def test_14_14_calls_are_looked_for_behind_the_reasoning() -> None:
    """A call that the model only thinks of is none: the parser of task 12 sees the content."""
    from mini_vllm.entrypoints.openai.reasoning_parser import ReasoningAnswerParser, ReasoningParser
    from mini_vllm.entrypoints.openai.tool_parser import HermesToolParser
    from mini_vllm.reasoning import ReasoningFormat

    call = '<tool_call>{"name": "w", "arguments": {"a": 1}}</tool_call>'
    text = f"I could say {call}.</think>{call}"
    parser = ReasoningAnswerParser(ReasoningParser(ReasoningFormat()), HermesToolParser())
    for letter in text:
        parser.extract_streaming(letter)
    parser.finish()
    calls = [(one.name, one.arguments) for one in parser.calls]
    expect(calls, [("w", '{"a": 1}')], at=f"{text!r} letter by letter")
