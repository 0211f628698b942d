"""Task 12.13: which row of the batch gets which mask."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.structured_output.utils import mask_rows


def test_12_13_one_row_each() -> None:
    """The batch has b, a; the masks have a, b."""
    found = mask_rows(["b", "a"], [1, 1], {"a": (0, 1), "b": (1, 1)})
    expect(found, ([0, 1], [1, 0]), at="logits b, a; masks a, b")


def test_12_13_some_have_no_mask() -> None:
    """b in the middle is not constrained: its row is left out."""
    found = mask_rows(["a", "b", "c"], [1, 1, 1], {"c": (0, 1), "a": (1, 1)})
    expect(found, ([0, 2], [1, 0]), at="logits a, b, c; masks c, a")


def test_12_13_drafts_move_what_follows() -> None:
    """The worked example of the docstring."""
    found = mask_rows(["b", "a", "c"], [1, 3, 1], {"a": (0, 3), "b": (3, 1)})
    expect(found, ([0, 1, 2, 3], [3, 0, 1, 2]), at="logits b, a a a, c; masks a a a, b")


def test_12_13_drafts_of_a_request_without_a_mask() -> None:
    """Its rows count too, though they are left out."""
    found = mask_rows(["free", "a"], [4, 2], {"a": (0, 2)})
    expect(found, ([4, 5], [0, 1]), at="logits free x 4, a a; masks a a")


def test_12_13_no_row_has_a_mask() -> None:
    """Two empty lists."""
    expect(mask_rows(["a", "b"], [1, 2], {}), ([], []), at="no masks")


def test_12_13_masks_of_requests_that_are_not_sampled() -> None:
    """A request may have failed since: its mask is left over."""
    expect(
        mask_rows(["b"], [1], {"a": (0, 2), "b": (2, 1)}), ([0], [2]), at="a is not in the batch"
    )


def test_12_13_fewer_masks_than_rows() -> None:
    """Rows behind the last mask are not constrained."""
    found = mask_rows(["a", "b"], [3, 1], {"a": (0, 2), "b": (2, 1)})
    expect(found, ([0, 1, 3], [0, 1, 2]), at="a has 3 rows of logits and 2 masks")
