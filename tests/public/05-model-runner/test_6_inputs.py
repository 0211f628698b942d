"""Task 05.6: from a plan to the tensors of one forward pass."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.worker.input_batch import FlatBatch

ANA = [50, 51, 52, 53, 54, 55, 56, 57, 58, 59]
BEN = [40, 41, 42, 43, 44]
CLEO = [30, 31, 32]


def morning(step: Any) -> Any:
    """Three rows: ana decodes, ben is in the middle of his prompt, cleo's prompt is new."""
    runner = step.runner()
    step.seat(runner.batch, 0, "ben", BEN, computed=1, blocks=[6, 2])
    step.seat(runner.batch, 1, "cleo", CLEO, computed=0, blocks=[5])
    step.seat(runner.batch, 2, "ana", ANA, computed=9, blocks=[7, 3, 9])
    return runner


PLAN = {"cleo": 3, "ben": 2, "ana": 1}
AT = "the plan: cleo 3, ben 2, ana 1; rows: ben, cleo, ana"


def prepared(step: Any) -> Any:
    return morning(step)._prepare_inputs(step.plan(PLAN))


def test_05_6_decodes_lead_and_the_rest_keeps_its_order(step: Any) -> None:
    """Ids, rows and counts in one and the same order; row numbers stay what they are."""
    runner = morning(step)
    req_ids, rows, num_scheduled = runner._order_requests(step.plan(PLAN))
    expect(req_ids, ["ana", "cleo", "ben"], at=f"{AT}: ids")
    expect(rows.tolist(), [2, 1, 0], at=f"{AT}: rows")
    expect(num_scheduled.tolist(), [1, 3, 2], at=f"{AT}: tokens in this step")
    kinds = (str(rows.dtype), str(num_scheduled.dtype))
    expect(kinds, ("int64", "int32"), at="dtypes of rows and of tokens in this step")


def test_05_6_a_request_that_is_not_scheduled_is_left_out(step: Any) -> None:
    """A row may have a pause."""
    req_ids, rows, num_scheduled = morning(step)._order_requests(step.plan({"ben": 2}))
    got = (req_ids, rows.tolist(), num_scheduled.tolist())
    expect(got, (["ben"], [0], [2]), at="three rows, only ben is scheduled")


def test_05_6_tokens_and_positions_are_looked_up(step: Any) -> None:
    """Each request's next tokens, from its own row, at its own positions."""
    inputs = prepared(step)
    expect(inputs.input_ids.tolist(), [59, 30, 31, 32, 41, 42], at=f"{AT}: input_ids")
    expect(inputs.positions.tolist(), [9, 0, 1, 2, 1, 2], at=f"{AT}: positions")
    expect(inputs.req_ids, ["ana", "cleo", "ben"], at=f"{AT}: req_ids")


def test_05_6_a_chunk_is_not_sampled(step: Any) -> None:
    """ana and cleo have caught up after this step; ben has 3 of 5."""
    inputs = prepared(step)
    expect(inputs.sample_rows.tolist(), [2, 1], at=f"{AT}: rows in the batch that are sampled")
    expect(inputs.logits_indices.tolist(), [0, 3], at=f"{AT}: their last tokens in the flat batch")


def test_05_6_what_is_recomputed_is_not_sampled_again(step: Any) -> None:
    """ben was preempted with 2 tokens of output. His prompt ends in this chunk, he does not."""
    runner = step.runner()
    step.seat(runner.batch, 0, "ben", [*BEN, 80, 81], computed=0, blocks=[6, 2])
    inputs = runner._prepare_inputs(step.plan({"ben": 5}))
    at = "5 of ben's 7 tokens (prompt 5, output 2) are computed again"
    expect(inputs.sample_rows.tolist(), [], at=f"{at}: who is sampled")
    runner.batch.num_computed_tokens[0] = 5
    inputs = runner._prepare_inputs(step.plan({"ben": 2}))
    expect(inputs.input_ids.tolist(), [80, 81], at="the next step computes his output: input_ids")
    expect(inputs.sample_rows.tolist(), [0], at="the next step computes his output: who is sampled")


def test_05_6_attention_learns_lengths_and_starts(step: Any) -> None:
    """Where each request begins, and how long its context is after this step."""
    metadata = prepared(step).metadata
    expect(metadata.query_start_loc.tolist(), [0, 1, 4, 6], at=f"{AT}: query_start_loc")
    expect(metadata.seq_lens.tolist(), [10, 3, 3], at=f"{AT}: seq_lens")
    got = (metadata.max_query_len, metadata.max_seq_len, metadata.num_decode_reqs)
    expect(got, (3, 10, 1), at=f"{AT}: max_query_len, max_seq_len, num_decode_reqs")
    lists = (metadata.query_lens_cpu, metadata.seq_lens_cpu)
    expect(lists, ([1, 3, 2], [10, 3, 3]), at=f"{AT}: query_lens_cpu, seq_lens_cpu")


def test_05_6_the_block_table_follows_the_order(step: Any) -> None:
    """One line for each scheduled request, as wide as the longest of them."""
    metadata = prepared(step).metadata
    right = [[7, 3, 9], [5, 0, 0], [6, 2, 0]]
    expect(metadata.block_table.tolist(), right, at=f"{AT}: block_table of ana, cleo, ben")
    narrow = morning(step)._prepare_inputs(step.plan({"cleo": 3})).metadata
    at = "only cleo is scheduled, with one block: block_table"
    expect(narrow.block_table.tolist(), [[5]], at=at)


def test_05_6_keys_go_to_their_own_blocks(step: Any) -> None:
    """Slots by row and position: ana's block 9, cleo's 5, ben's 6."""
    metadata = prepared(step).metadata
    expect(metadata.slot_mapping.tolist(), [37, 20, 21, 22, 25, 26], at=f"{AT}: slot_mapping")


def test_05_6_metadata_can_be_made_alone(step: Any) -> None:
    """The function gets the flat batch; ana's chunk of 3 crosses from block 7 to block 3."""
    runner = morning(step)
    int32, int64 = "int32", "int64"
    array = torch.tensor
    flat = FlatBatch(
        array([0, 1, 1, 1]).numpy(), array([2, 3, 4, 5]).numpy(), array([0, 1, 4]).int().numpy()
    )
    rows, counts = array([1, 2]).numpy(), array([1, 3]).int().numpy()
    metadata = runner._attention_metadata(rows, flat, counts, array([3, 6]).int().numpy())
    at = "cleo 1 token at position 2, ana 3 from position 3"
    expect(metadata.slot_mapping.tolist(), [22, 31, 12, 13], at=f"{at}: slot_mapping")
    expect(metadata.num_decode_reqs, 1, at=f"{at}: num_decode_reqs")
    kinds = [
        str(t.dtype).removeprefix("torch.")
        for t in (
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_table,
            metadata.slot_mapping,
        )
    ]
    at = "dtypes of query_start_loc, seq_lens, block_table, slot_mapping"
    expect(kinds, [int32, int32, int32, int64], at=at)
