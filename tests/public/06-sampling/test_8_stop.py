"""Task 06.8: stop strings across token borders."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.engine.detokenizer import find_stop_string, possible_stop_length


def letters(text: str) -> list[int]:
    """One token a letter."""
    return [ord(letter) for letter in text]


def stream(detokenizer: Any, text: str, size: int = 1) -> list[str]:
    """The pieces that come out, `size` tokens a step, and what is flushed at the end."""
    ids = letters(text)
    steps = [ids[i : i + size] for i in range(0, len(ids), size)]
    return [detokenizer.append(step) for step in steps] + [detokenizer.flush()]


@pytest.mark.parametrize(
    ("text", "new", "stop", "found"),
    [
        ("xstop", 1, ["stop"], ("stop", 1)),
        ("xstop", 5, ["stop"], ("stop", 1)),
        ("stopx", 1, ["stop"], None),
        ("xstop", 0, ["stop"], None),
        ("stopstop", 1, ["stop"], ("stop", 4)),
        ("abc", 3, ["z"], None),
    ],
)
def test_06_8_a_match_ends_inside_the_new_characters(
    text: str, new: int, stop: list[str], found: Any
) -> None:
    """Find: it may begin among the old characters, but it ends among the new ones."""
    at = f"the last {new} characters of {text!r} are new, stop is {stop}"
    expect(find_stop_string(text, new, stop), found, at=at)


def test_06_8_the_order_of_the_list_decides() -> None:
    """Find: of several stop strings the first of the list, not the first of the text."""
    expect(find_stop_string("abc", 3, ["c", "a"]), ("c", 2), at="stop ['c', 'a'] in 'abc'")


@pytest.mark.parametrize(
    ("text", "stop", "length"),
    [
        ("a sto", ["stop"], 3),
        ("a store", ["stop"], 0),
        ("aa", ["aab"], 2),
        ("x", ["x"], 0),
        ("ab", ["b", "abc"], 2),
        ("abab", ["ababc", "bc"], 4),
        ("", ["abc"], 0),
    ],
)
def test_06_8_the_longest_end_that_may_begin_a_stop_string(
    text: str, stop: list[str], length: int
) -> None:
    """Possible: as much of the end as the beginning of any stop string, and no more."""
    expect(possible_stop_length(text, stop), length, at=f"text {text!r}, stop {stop}")


def test_06_8_a_stop_string_over_three_tokens(lab: Any) -> None:
    """The bundled tokenizer cuts "stop here" into three tokens; none of it is ever printed."""
    tokenizer = lab.bundled_tokenizer()
    detokenizer = lab.detokenizer(tokenizer, stop=["stop here"])
    ids = tokenizer.encode("Go on, stop here now.").ids
    pieces = [detokenizer.append([token_id]) for token_id in ids] + [detokenizer.flush()]
    tokens = [tokenizer.decode([i]) for i in ids]
    expect("".join(pieces), "Go on, ", at="the text before the stop string", tokens=tokens)
    expect(detokenizer.stop_reason, "stop here", at="the stop reason", tokens=tokens)


def test_06_8_what_could_be_taken_back_is_held_back(lab: Any) -> None:
    """Text waits only as long as it may be the beginning of a stop string."""
    yours = stream(lab.detokenizer(stop=["stop here"]), "astopxstop")
    expected = ["a", "", "", "", "", "stopx", "", "", "", "", "stop"]
    expect(yours, expected, at="'astopxstop' letter by letter, then the flush; stop 'stop here'")


def test_06_8_the_size_of_a_step_does_not_matter(lab: Any) -> None:
    """One token a step, or all of them: the first match in the text's order of time ends it."""
    for size in (1, 2, 3, 12):
        detokenizer = lab.detokenizer(stop=["b", "cd"])
        text = "".join(stream(detokenizer, "aaaacdbxxxxx", size))
        at = f"'aaaacdbxxxxx', {size} tokens a step, stop ['b', 'cd']: cd is complete before b"
        expect((text, detokenizer.stop_reason), ("aaaa", "cd"), at=at)


def test_06_8_tokens_are_counted_up_to_the_stop(lab: Any) -> None:
    """The count ends with the token that completes the stop string, whatever the step."""
    for size in (1, 2, 3, 12):
        detokenizer = lab.detokenizer(stop=["cd"])
        stream(detokenizer, "aaaacdxxxxxx", size)
        at = f"'aaaacdxxxxxx', {size} tokens a step, stop 'cd'"
        expect(detokenizer.num_output_tokens, 6, at=at)


def test_06_8_the_stop_string_may_be_included(lab: Any) -> None:
    """include_stop_str_in_output keeps the stop string, and nothing behind it."""
    detokenizer = lab.detokenizer(stop=["bc"], include_stop_str_in_output=True)
    expect("".join(stream(detokenizer, "abcd")), "abc", at="'abcd', stop 'bc', included")


def test_06_8_min_tokens_delays_stop_strings(lab: Any) -> None:
    """A stop string that ends within the first min_tokens tokens is text like any other."""
    for min_tokens, text in ((1, ""), (2, "ab"), (3, "ab"), (4, "abab")):
        yours = "".join(stream(lab.detokenizer(stop=["ab"], min_tokens=min_tokens), "ababab"))
        expect(yours, text, at=f"'ababab', stop 'ab', min_tokens {min_tokens}")


def test_06_8_tokens_after_the_stop_are_ignored(lab: Any) -> None:
    """After a match nothing is decoded and nothing counted, in this step and in later ones."""
    detokenizer = lab.detokenizer(stop=["b"])
    expect(detokenizer.append(letters("abcabc")), "a", at="'abcabc' in one step, stop 'b'")
    expect(detokenizer.num_output_tokens, 2, at="tokens counted until the stop")
    expect(detokenizer.append(letters("xyz")), "", at="a later step")
    expect(detokenizer.num_output_tokens, 2, at="tokens counted after the later step")


def test_06_8_the_stop_token_is_counted_and_not_shown(lab: Any) -> None:
    """A stop token that ended the request is no text, but it is a token."""
    detokenizer = lab.detokenizer(stop=["zz"])
    text = detokenizer.append(letters("ab!"), stop_terminated=True)
    expect((text, detokenizer.num_output_tokens), ("ab", 3), at="'ab!', and ! is the stop token")
    expect(detokenizer.stop_reason, None, at="no stop string has matched")
