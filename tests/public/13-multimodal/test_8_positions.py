"""13.8: positions in time, height and width."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.mm_features import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.multimodal.mrope import get_mrope_input_positions


def picture(offset: int, height: int, width: int, merge: int = 2) -> Any:
    """An image of height x width *tokens*."""
    data = {"image_grid_thw": [1, height * merge, width * merge]}
    return MultiModalFeatureSpec(data, "image", "x", PlaceholderRange(offset, height * width))


def rows(num_tokens: int, *images: Any, merge: int = 2) -> tuple[list[list[int]], int]:
    positions, delta = get_mrope_input_positions(num_tokens, images, merge)
    return positions.tolist(), delta


def test_13_8_text_is_as_ever() -> None:
    """Text has three equal rows of positions, and delta 0."""
    expect(rows(4), ([[0, 1, 2, 3]] * 3, 0), at="4 tokens of text")


def test_13_8_the_picture_of_the_docstring() -> None:
    """A picture of 2 x 3 tokens stands between two words and two words."""
    wanted = [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    expect(rows(10, picture(2, 2, 3)), (wanted, -3), at="time, height, width; delta")


def test_13_8_the_longer_side_moves_the_text() -> None:
    """Text goes on behind the longer side, here of a tall picture; the prompt may end with it."""
    wanted = [[0, 0, 0, 3], [0, 1, 2, 3], [0, 0, 0, 3]]
    expect(rows(4, picture(0, 3, 1)), (wanted, 0), at="3 x 1 tokens at the beginning")
    wanted = [[0, 1, 1, 1, 1], [0, 1, 1, 2, 2], [0, 1, 2, 1, 2]]
    expect(rows(5, picture(1, 2, 2)), (wanted, -2), at="2 x 2 tokens at the end")


def test_13_8_two_pictures_side_by_side() -> None:
    """The second begins where the first has ended."""
    images = [picture(1, 1, 2), picture(3, 2, 1)]
    wanted = [[0, 1, 1, 3, 3, 5], [0, 1, 1, 3, 4, 5], [0, 1, 2, 3, 3, 5]]
    expect(rows(6, *images), (wanted, 0), at="1 x 2, then 2 x 1 tokens")


def test_13_8_a_token_is_several_patches() -> None:
    """With merge_size 3 a token is 3 x 3 patches."""
    wanted = [[0, 0, 2], [0, 0, 2], [0, 1, 2]]
    expect(rows(3, picture(0, 1, 2, merge=3), merge=3), (wanted, 0), at="3 x 6 patches")


def test_13_8_whole_numbers_of_64_bits() -> None:
    """Positions are [3, tokens] in int64."""
    positions, delta = get_mrope_input_positions(5, [picture(1, 2, 2)], 2)
    expect(str(positions.dtype), "int64", at="dtype")
    expect(positions.shape, (3, 5), at="shape")
    expect(int(delta), -2, at="delta")
