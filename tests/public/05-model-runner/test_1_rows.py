"""Task 05.1: a row for each request."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect


def test_05_1_a_new_request_fills_a_row(rows: Any) -> None:
    """Tokens, number of tokens, computed tokens and block table, all in one row."""
    batch = rows.batch()
    row = batch.add_request(rows.state("ana", [5, 8, 2, 7, 4]), [3, 9], 4)
    at = "ana has 5 tokens, 4 of them found in the prefix cache, and the blocks 3 and 9"
    expect(row, 0, at=f"{at}: the returned row")
    right = {"tokens": [5, 8, 2, 7, 4], "computed": 4, "blocks": [3, 9]}
    expect(rows.show(batch, "ana"), right, at=at)


def test_05_1_each_request_gets_a_row_of_its_own(rows: Any) -> None:
    """Without holes the next row is at the end."""
    batch = rows.batch()
    taken = [batch.add_request(rows.state(n, [1]), [2], 0) for n in ("ana", "ben", "cleo")]
    expect(taken, [0, 1, 2], at="ana, ben and cleo arrive: their rows")
    expect(rows.names(batch), ["ana", "ben", "cleo"], at="batch.rows")
    at = "batch.req_id_to_row"
    expect(batch.req_id_to_row, {"ana": 0, "ben": 1, "cleo": 2}, at=at)


def test_05_1_the_first_hole_is_filled_first(rows: Any) -> None:
    """A newcomer takes the lowest free row, so that little is left to condense."""
    batch = rows.batch(5)
    for row, name in enumerate(["ana", "ben", "cleo", "dan", "eve"]):
        rows.seat(batch, row, name, [1])
    rows.leave(batch, 3)
    rows.leave(batch, 1)
    row = batch.add_request(rows.state("fay", [6]), [2], 0)
    expect(row, 1, at="rows: ana - cleo - eve; fay arrives")
    expect(rows.names(batch), ["ana", "fay", "cleo", "-", "eve"], at="batch.rows afterwards")
    expect(batch.req_id_to_row["fay"], 1, at="req_id_to_row['fay']")


def test_05_1_a_full_batch_refuses(rows: Any) -> None:
    """All rows taken: ValueError, and nothing has changed."""
    batch = rows.batch(2)
    rows.seat(batch, 0, "ana", [1, 2], blocks=[5])
    rows.seat(batch, 1, "ben", [3])
    with pytest.raises(ValueError, match=r"\b2\b"):
        batch.add_request(rows.state("cleo", [4]), [6], 0)
    expect(rows.names(batch), ["ana", "ben"], at="cleo was refused: batch.rows")
    expect(batch.req_id_to_row, {"ana": 0, "ben": 1}, at="cleo was refused: req_id_to_row")
    right = {"tokens": [1, 2], "computed": 0, "blocks": [5]}
    expect(rows.show(batch, "ana"), right, at="ana's row after the refusal")


def test_05_1_a_full_batch_with_a_hole_has_room(rows: Any) -> None:
    """What counts is a free row, not the length of the list."""
    batch = rows.batch(2)
    rows.seat(batch, 0, "ana", [1])
    rows.seat(batch, 1, "ben", [2])
    rows.leave(batch, 0)
    row = batch.add_request(rows.state("cleo", [4]), [6], 0)
    expect(row, 0, at="2 rows: - ben; cleo arrives")


def test_05_1_a_resumed_request_brings_its_output(rows: Any) -> None:
    """A resumed request has prompt and output; both are computed again."""
    batch = rows.batch()
    state = rows.state("ana", [5, 8], [70, 71])
    row = batch.add_request(state, [3], 0)
    at = "ana was preempted after 2 tokens of output and comes back"
    expect(batch.token_ids[row, :5].tolist(), [5, 8, 70, 71, 0], at=f"{at}: token_ids of her row")
    expect(int(batch.num_tokens[row]), 4, at=f"{at}: num_tokens of her row")
    expect(state.prompt_token_ids, [5, 8], at=f"{at}: her prompt afterwards")
    expect(state.output_token_ids, [70, 71], at=f"{at}: her output afterwards")


def test_05_1_nothing_is_left_of_the_last_owner(rows: Any) -> None:
    """Unused entries of the block table are 0, whatever request had the row before."""
    batch = rows.batch()
    rows.seat(batch, 0, "ana", [1] * 13, computed=12, blocks=[4, 5, 6, 7])
    rows.leave(batch, 0)
    batch.add_request(rows.state("ben", [2, 3]), [9], 0)
    at = "ana had blocks 4 5 6 7 in row 0; ben follows with block 9"
    expect(batch.block_table[0].tolist(), [9, 0, 0, 0], at=f"{at}: the row of the table")
    right = {"tokens": [2, 3], "computed": 0, "blocks": [9]}
    expect(rows.show(batch, "ben"), right, at=at)


def test_05_1_new_blocks_go_behind_the_old_ones(rows: Any) -> None:
    """append_blocks extends one row and leaves the others alone."""
    batch = rows.batch()
    rows.seat(batch, 0, "ana", [1] * 8, blocks=[4, 5])
    rows.seat(batch, 1, "ben", [1] * 4, blocks=[6])
    batch.append_blocks("ben", [7, 2])
    batch.append_blocks("ben", [3])
    expect(rows.show(batch, "ben")["blocks"], [6, 7, 2, 3], at="ben had 6, then got 7 2, then 3")
    expect(rows.show(batch, "ana")["blocks"], [4, 5], at="ana's blocks meanwhile")


def test_05_1_no_new_blocks_change_nothing(rows: Any) -> None:
    """An empty list is no mistake: most decodes need no block."""
    batch = rows.batch()
    rows.seat(batch, 0, "ana", [1] * 5, blocks=[4, 5])
    batch.append_blocks("ana", [])
    expect(rows.show(batch, "ana")["blocks"], [4, 5], at="ana's blocks after append_blocks([])")
