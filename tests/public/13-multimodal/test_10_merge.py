"""13.10: rows of the encoder into the embeddings of a step."""

from __future__ import annotations

import pytest
import torch

from labkit.testing import expect
from mini_vllm.multimodal.gather import merge_multimodal_embeddings

EMBEDS = torch.tensor([[1.0, 1], [2, 2], [3, 3], [4, 4]])
MASK = torch.tensor([False, True, False, True])


def test_13_10_rows_take_the_places() -> None:
    """The encoder's rows take the places of the mask; the text's stay as they are."""
    rows = [torch.tensor([[10.0, 11]]), torch.tensor([[20.0, 21]])]
    merged, levels = merge_multimodal_embeddings(EMBEDS, rows, MASK)
    expect(merged.tolist(), [[1, 1], [10, 11], [3, 3], [20, 21]], at="[4, 2] embeddings")
    expect(tuple(levels.shape), (0, 4, 2), at="no DeepStack: no levels")
    expect(EMBEDS[1].tolist(), [2, 2], at="the caller's tensor")


def test_13_10_levels_are_zero_elsewhere() -> None:
    """What stands behind the embedding in a row becomes levels: two here, 0 where text is."""
    rows = [torch.tensor([[10.0, 11, 12, 13, 14, 15], [20, 21, 22, 23, 24, 25]])]
    merged, levels = merge_multimodal_embeddings(EMBEDS, rows, MASK)
    expect(merged.tolist(), [[1, 1], [10, 11], [3, 3], [20, 21]], at="the first two columns")
    wanted = [
        [[0, 0], [12, 13], [0, 0], [22, 23]],
        [[0, 0], [14, 15], [0, 0], [24, 25]],
    ]
    expect(levels.tolist(), wanted, at="levels [2, 4, 2]")


def test_13_10_the_embeddings_dtype_stays() -> None:
    """Rows are converted to the dtype of the embeddings."""
    rows = [torch.ones(2, 2, dtype=torch.float64)]
    merged, levels = merge_multimodal_embeddings(EMBEDS, rows, MASK)
    expect((merged.dtype, levels.dtype), (torch.float32, torch.float32), at="dtypes")


@pytest.mark.parametrize("count", [1, 3])
def test_13_10_as_many_rows_as_places(count: int) -> None:
    """One row for two places would be written to both."""
    with pytest.raises(ValueError) as error:
        merge_multimodal_embeddings(EMBEDS, [torch.zeros(count, 2)], MASK)
    text = str(error.value)
    for number in (count, 2):
        expect(str(number) in text, True, at=f"the message has the number {number}", text=text)


@pytest.mark.parametrize("levels", [0, 2])
def test_13_10_a_step_without_places(levels: int) -> None:
    """No place and no row: the embeddings as they are, and levels of zeros."""
    rows = [torch.zeros(0, 2 * (1 + levels))]
    merged, made = merge_multimodal_embeddings(EMBEDS, rows, torch.zeros(4, dtype=torch.bool))
    expect(merged.tolist(), EMBEDS.tolist(), at="embeddings")
    expect(tuple(made.shape), (levels, 4, 2), at="the shape of the levels")
    expect(made.any().item(), False, at="a level that is not zero")
