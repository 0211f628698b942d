"""13.3: one placeholder a picture becomes one token a row."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.multimodal.processing import expand_placeholders

PAD = 9


def places(token_ids: list[int], lengths: list[int]) -> tuple[list[int], list[tuple[int, int]]]:
    expanded, ranges = expand_placeholders(token_ids, PAD, lengths)
    return expanded, [(place.offset, place.length) for place in ranges]


def test_13_3_a_placeholder_becomes_many() -> None:
    """A placeholder becomes many in its place, and the text around it stays."""
    yours = places([1, 2, PAD, 3], [3])
    expect(yours, ([1, 2, PAD, PAD, PAD, 3], [(2, 3)]), at="one picture of 3 tokens")


def test_13_3_a_picture_moves_those_behind_it() -> None:
    """Offsets count in the longer prompt."""
    yours = places([1, PAD, 2, PAD, PAD, 3], [3, 1, 2])
    wanted = ([1, PAD, PAD, PAD, 2, PAD, PAD, PAD, 3], [(1, 3), (5, 1), (6, 2)])
    expect(yours, wanted, at="pictures of 3, 1 and 2 tokens")


def test_13_3_text_stays_as_it_is() -> None:
    """Without a picture nothing changes, and the caller's list is not changed."""
    prompt = [1, 2, 3]
    yours = places(prompt, [])
    expect(yours, ([1, 2, 3], []), at="no picture")
    yours[0].append(4)
    expect(prompt, [1, 2, 3], at="the caller's own list")


@pytest.mark.parametrize(
    ("prompt", "lengths"), [([1, PAD], []), ([1], [3]), ([PAD, PAD], [3]), ([PAD], [3, 3])]
)
def test_13_3_as_many_placeholders_as_pictures(prompt: list[int], lengths: list[int]) -> None:
    """Anything else is refused, and the message counts both."""
    with pytest.raises(ValueError) as error:
        places(prompt, lengths)
    text = str(error.value)
    for number in (prompt.count(PAD), len(lengths)):
        expect(str(number) in text, True, at=f"the message has the number {number}", text=text)
