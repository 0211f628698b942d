"""13.9: the rows that a step takes from the encoder, and where they go."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.multimodal.gather import gather_mm_embeddings

CACHE = {
    "cat": torch.tensor([[100.0], [101], [102], [103]]),
    "dog": torch.tensor([[200.0], [201], [202], [203], [204], [205]]),
    "grid": torch.tensor([[300.0], [301], [302]]),
}


def gather(*requests: tuple[list[Any], int, int]) -> tuple[list[int], list[int]]:
    """Each request: its images, computed, scheduled. The rows, and the tokens that take them."""
    images, computed, scheduled = (list(column) for column in zip(*requests, strict=True))
    rows, mask = gather_mm_embeddings(images, computed, scheduled, CACHE)
    taken = torch.cat(rows)[:, 0].int().tolist() if rows else []
    return taken, mask.nonzero()[:, 0].tolist()


def test_13_9_a_whole_image(lab: Any) -> None:
    """An image in one step: all of its rows, at its places."""
    yours = gather(([lab.image(2, "cat")], 0, 8))
    expect(yours, ([100, 101, 102, 103], [2, 3, 4, 5]), at="a cat at 2 .. 6, tokens 0 .. 8")


def test_13_9_a_chunk_takes_its_own_rows(lab: Any) -> None:
    """A chunk takes the rows of its own positions: at the beginning, in the middle, at the end."""
    images = [lab.image(2, "cat")]
    expect(gather((images, 0, 4)), ([100, 101], [2, 3]), at="tokens 0 .. 4")
    expect(gather((images, 3, 2)), ([101, 102], [0, 1]), at="tokens 3 .. 5")
    expect(gather((images, 5, 9)), ([103], [0]), at="tokens 5 .. 14")
    expect(gather((images, 6, 1)), ([], []), at="tokens 6 .. 7: it is computed")


def test_13_9_in_the_order_of_the_flat_batch(lab: Any) -> None:
    """Rows come in the order of the flat batch: a decode, a chunk of the dog, the cat."""
    cat, dog = [lab.image(1, "cat")], [lab.image(4, "dog")]
    yours = gather(([], 30, 1), (dog, 7, 4), (cat, 0, 3))
    wanted = ([203, 204, 205, 100, 101], [1, 2, 3, 6, 7])
    expect(yours, wanted, at="tokens of three requests: 1 + 4 + 3")


def test_13_9_two_images_of_one_request(lab: Any) -> None:
    """Two images of one request in one step, the second only in part."""
    images = [lab.image(1, "cat"), lab.image(6, "dog")]
    yours = gather((images, 2, 6))
    expect(yours, ([101, 102, 103, 200, 201], [0, 1, 2, 4, 5]), at="tokens 2 .. 8")


def test_13_9_separators_take_no_row(lab: Any) -> None:
    """A separator inside an image takes no row."""
    images = [lab.image(2, "grid", mask=(True, False, True, False, True))]
    expect(gather((images, 0, 9)), ([300, 301, 302], [2, 4, 6]), at="all of it")
    expect(gather((images, 3, 2)), ([301], [1]), at="tokens 3 .. 5")
    expect(gather((images, 3, 1)), ([], []), at="token 3: a separator")


def test_13_9_an_image_that_is_not_there_is_an_error(lab: Any) -> None:
    """An image that is not there is an error, never a row of zeros."""
    with pytest.raises(KeyError):
        gather(([lab.image(0, "owl")], 0, 3))
    expect(gather(([lab.image(5, "owl")], 0, 3)), ([], []), at="it is not needed yet")


def test_13_9_the_mask_is_as_long_as_the_step() -> None:
    """The mask is [T] bool, also without images."""
    rows, mask = gather_mm_embeddings([[], []], [4, 0], [1, 3], CACHE)
    expect((rows, tuple(mask.shape), mask.dtype), ([], (4,), torch.bool), at="rows, shape, dtype")
