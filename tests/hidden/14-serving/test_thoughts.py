"""Reasoning: random texts, cut at random, against a reader of whole texts."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=20)
BEGINNINGS = ("INSIDE", "OUTSIDE", "BEHIND")
FORMS = (
    ("<think>", "</think>", None),
    ("<think>", "</think>", "<tool_call>"),
    ("[A]", "[/A]", "[AB"),
    ("aab", "cc", None),
)
"""Start, end and call; the last ones begin with letters, and again inside of themselves."""


def both(text: str, form: tuple[str, str, str | None], beginning: str) -> tuple[str, str]:
    """Reasoning and content of a whole text: the slow and obvious rule."""
    start, end, call = form
    if beginning == "BEHIND":
        return "", text
    bare = text.lstrip()
    if bare.startswith(start):
        text = bare[len(start) :]
    elif beginning == "OUTSIDE":
        return "", text
    for place in range(len(text)):
        if text.startswith(end, place):
            return text[:place], text[place + len(end) :]
        if call and text.startswith(call, place):
            return text[:place], text[place:]
    return text, ""


def read(
    worker: Any, pieces: list[str], form: tuple[str, str, str | None], beginning: str
) -> list[dict[str, str]]:
    """The news of each piece, and of the end."""
    p = Program()
    made = p.new("mini_vllm.reasoning:ReasoningFormat", *form)
    parser = p.new(
        "mini_vllm.entrypoints.openai.reasoning_parser:ReasoningParser", made,
        p.name(f"mini_vllm.reasoning:Beginning.{beginning}"),
    )  # fmt: skip
    for piece in pieces:
        p.see(parser.extract_streaming(piece))
    p.see(parser.finish())
    return list(worker.run(p))


def joined(news: list[dict[str, str]]) -> tuple[str, str]:
    texts = [(one.get("reasoning", ""), one.get("content", "")) for one in news]
    return "".join(first for first, _ in texts), "".join(second for _, second in texts)


def certain(text: str, form: tuple[str, str, str | None], beginning: str) -> tuple[str, str]:
    """What all texts have in common that begin with this one: try what could follow."""
    tags = [tag for tag in form if tag]
    follows = [tag[n:] for tag in tags for n in range(len(tag) + 1)] + ["?", " "]
    found = [both(text + more, form, beginning) for more in follows]
    return tuple(
        "".join(
            letters[0]
            for letters in itertools.takewhile(
                lambda letters: len(set(letters)) == 1, zip(*texts, strict=False)
            )
        )
        for texts in zip(*found, strict=True)
    )  # type: ignore[return-value]


def pieces_of(form: tuple[str, str, str | None]) -> list[str]:
    """Tags, their beginnings, and other text."""
    tags = [tag for tag in form if tag]
    return [*tags, *(tag[:-1] for tag in tags), *(tag[:1] for tag in tags), "b", " ", "\n", "日"]


@many
@given(seed=st.integers(0, 2**31))
def test_14_14_any_cut_of_any_text(subject: Any, seed: int) -> None:
    """Ten texts at a time. The two texts of a whole answer; none of the news is empty, no reasoning
    follows content, and after each piece all is told that no other piece can change."""
    draw = random.Random(seed)
    for _ in range(10):
        form, beginning = draw.choice(FORMS), draw.choice(BEGINNINGS[:2] * 3 + BEGINNINGS[2:])
        text = "".join(draw.choices(pieces_of(form), k=draw.randint(1, 7)))
        cuts = sorted(draw.sample(range(len(text) + 1), min(draw.randint(0, 6), len(text))))
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        news = read(subject, pieces, form, beginning)
        assert joined(news) == both(text, form, beginning)
        assert all(one.keys() <= {"reasoning", "content"} and all(one.values()) for one in news)
        keys = [key for one in news for key in sorted(one, reverse=True)]
        assert keys == sorted(keys, reverse=True)
        for count in range(len(pieces)):
            told, so_far = joined(news[: count + 1]), "".join(pieces[: count + 1])
            assert told == certain(so_far, form, beginning), so_far


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_14_14_white_space_of_every_kind(subject: Any, beginning: str) -> None:
    """Before a start tag it is left out; elsewhere it is text."""
    for space in ("\t", "\r\n", "\u3000", " \n\t "):
        for text in (f"{space}<think>{space}a</think>{space}", f"{space}a", space):
            for pieces in ([text], list(text)):
                seen = joined(read(subject, pieces, FORMS[0], beginning))
                assert seen == both(text, FORMS[0], beginning), pieces


@pytest.mark.parametrize("size", [1, 3, 100])
def test_14_14_every_order_of_tags(subject: Any, size: int) -> None:
    """Three parts in any order, a call before the end tag and behind it, in pieces of any size."""
    for form in FORMS[1:3]:
        p, right = Program(), []
        made = p.new("mini_vllm.reasoning:ReasoningFormat", *form)
        inside = p.name("mini_vllm.reasoning:Beginning.INSIDE")
        for parts in itertools.product([*form, "a"], repeat=3):
            text = "".join(map(str, parts))
            parser = p.new(
                "mini_vllm.entrypoints.openai.reasoning_parser:ReasoningParser", made, inside
            )
            for place in range(0, len(text), size):
                p.see(parser.extract_streaming(text[place : place + size]))
            p.see(parser.finish())
            right.append((-(-len(text) // size) + 1, both(text, form, "INSIDE")))
        seen = subject.run(p)
        for count, texts in right:
            assert joined(seen[:count]) == texts
            seen = seen[count:]
