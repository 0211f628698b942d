"""Task 07.2: copy a step into the tensors that a graph reads, and make the rest inert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.testing import expect
from mini_vllm.worker.cuda_graphs import StaticInputs

TWO = ([17, 4], [3, 6], [[2], [3, 7]])
"""Two requests: 3 tokens in block 2, and 6 in blocks 3 and 7. Slots 2 * 4 + 2 and 7 * 4 + 1."""


def fill(static: StaticInputs, step: Callable[..., Any], bucket: int) -> None:
    static.fill(*step(*TWO), bucket)


def test_07_2_rows_of_the_step_are_copied(static: StaticInputs, step: Any) -> None:
    """The first R entries of every tensor are the step's."""
    fill(static, step, 4)
    expect(static.input_ids[:2].tolist(), [17, 4], at="input_ids of the 2 requests")
    expect(static.positions[:2].tolist(), [2, 5], at="positions of the 2 requests")
    expect(static.slot_mapping[:2].tolist(), [10, 29], at="slot_mapping of the 2 requests")
    expect(static.seq_lens[:2].tolist(), [3, 6], at="seq_lens of the 2 requests")


def test_07_2_block_table_goes_into_the_left_columns(static: StaticInputs, step: Any) -> None:
    """A step's table is as wide as its longest request; ours is as wide as any may be."""
    fill(static, step, 4)
    expect(static.block_table[0, :1].tolist(), [2], at="row 0: 3 tokens, 1 block")
    expect(static.block_table[1, :2].tolist(), [3, 7], at="row 1: 6 tokens, 2 blocks")


def test_07_2_padding_rows_have_no_slot(static: StaticInputs, step: Any) -> None:
    """The step before left slots 18 and 23 in rows 2 and 3. Does a padding row store there now?"""
    fill(static, step, 4)
    expect(static.slot_mapping.tolist(), [10, 29, -1, -1], at="2 requests in bucket 4")


def test_07_2_padding_rows_have_no_context(static: StaticInputs, step: Any) -> None:
    """Context length 0: a row of padding reads no key, whatever its block table says."""
    fill(static, step, 4)
    expect(static.seq_lens.tolist(), [3, 6, 0, 0], at="2 requests in bucket 4")


def test_07_2_as_many_rows_are_padded_as_the_graph_reads(static: StaticInputs, step: Any) -> None:
    """The graph of bucket 3 reads 3 rows: one of padding. It does not read row 3."""
    fill(static, step, 3)
    expect(static.slot_mapping[:3].tolist(), [10, 29, -1], at="2 requests in bucket 3")
    expect(static.seq_lens[:3].tolist(), [3, 6, 0], at="2 requests in bucket 3")


def test_07_2_tensors_stay_where_they_are(static: StaticInputs, step: Any) -> None:
    """A graph reads addresses, not names: a new tensor under the old name is never read."""
    names = ("input_ids", "positions", "slot_mapping", "seq_lens", "block_table")
    before = {name: getattr(static, name).data_ptr() for name in names}
    fill(static, step, 4)
    moved = [name for name in names if getattr(static, name).data_ptr() != before[name]]
    expect(moved, [], at="tensors that stand at another address after fill()")


def test_07_2_a_full_bucket_has_no_padding(static: StaticInputs, step: Any) -> None:
    """With R equal to the bucket, no row of the step is overwritten."""
    fill(static, step, 2)
    expect(static.slot_mapping[:2].tolist(), [10, 29], at="2 requests in bucket 2")
    expect(static.seq_lens[:2].tolist(), [3, 6], at="2 requests in bucket 2")
