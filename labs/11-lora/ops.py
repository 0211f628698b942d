"""Adds adapters to the output of a Linear on a CPU: ``y += B (A x)``, with each row's own adapter.

Two functions, for two kinds of steps::

    apply_dense     every row with every adapter, then forget what is foreign    many adapters,
                    x [T, in] @ all A -> h [T, slots * r], 0 where foreign       few rows: decodes
    apply_grouped   a product for each adapter, with the rows that use it        prompts

Buffers (S slots, n slices of a stacked projection, R = max_lora_rank)::

    lora_a  [S, n, R, in]      A of each slice
    lora_b  [S, R, out]        B of all slices side by side, transposed: columns of a slice are
                               its rows of y

An unused row of A, or column of B, is zero and adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

# With at least so many rows for each adapter, one product for each is faster than one for all.
MIN_GROUP_ROWS = 32


def apply_dense(
    x: Tensor,
    y: Tensor,
    lora_a: Tensor,
    lora_b: Tensor,
    columns: Sequence[slice],
    foreign: Tensor | None,
) -> None:
    """Add each row's adapter to ``y``, in place, by products with all adapters.

    Args:
        x: ``[T, in]``.
        y: ``[T, out]``, to which is added.
        lora_a: ``[S, n, R, in]``, the slots that may occur; n slices.
        lora_b: ``[S, R, out]``, finite where a slot is foreign to a row: 0 times infinity is NaN.
        columns: the columns of ``y`` and of ``lora_b`` that belong to each slice.
        foreign: ``[T, S]`` bool, True where a row does not use a slot; None: every row uses all
            (there is one).

    One product with all A gives ``h [T, S, n, R]``. Whatever a row got from a foreign slot is set
    to zero there, before B: it may be too large for its dtype, and infinity times 0 would turn
    another tenant's row into NaN. B itself is finite: loading refuses an adapter whose numbers are
    not. Then each slice needs one more product, over all slots at once. A loop over slots adds the
    same numbers and is right too.
    """
    # TODO 11.7
    raise NotImplementedError(
        "TODO 11.7: write apply_dense in labs/11-lora/ops.py"
        " (phase 11, 02-mini-build.md#task-7)"
    )


def apply_grouped(
    x: Tensor,
    y: Tensor,
    lora_a: Tensor,
    lora_b: Tensor,
    columns: Sequence[slice],
    groups: Sequence[tuple[int, Tensor]],
) -> None:
    """Add each row's adapter to ``y``, in place, one adapter after another.

    Args:
        x, y, lora_a, lora_b, columns: as in :func:`apply_dense`.
        groups: each slot that occurs, with the rows ``[g]`` int64 that use it.

    A slot is multiplied with the rows of its group alone, first with A and then with B. Rows of
    the base are in no group and stay as they are. Mind that ``y[rows]`` is a copy.
    """
    # TODO 11.7
    raise NotImplementedError(
        "TODO 11.7: write apply_grouped in labs/11-lora/ops.py"
        " (phase 11, 02-mini-build.md#task-7)"
    )


def prefer_groups(num_rows: int, num_adapters: int) -> bool:
    """Whether :func:`apply_grouped` is faster for ``num_rows`` rows with ``num_adapters``."""
    return num_rows >= MIN_GROUP_ROWS * num_adapters
