"""Task 05.4: where keys go, which rows are sampled, and where a sampled token goes."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.worker.input_batch import FlatBatch, rows_to_sample

# ------------------------------------------------------------------ slots


def test_05_4_a_slot_is_found_through_the_block_table(rows: Any) -> None:
    """Positions 0 to 5 of a request whose blocks are 7 and 3, 4 tokens each."""
    batch = rows.batch()
    rows.seat(batch, 0, "ana", [1] * 6, blocks=[7, 3])
    slots = batch.slot_mapping(rows.array([0] * 6, "int64"), rows.array(range(6), "int64"))
    at = "ana has blocks 7 and 3: slots of positions 0 to 5"
    expect(slots.tolist(), [28, 29, 30, 31, 12, 13], at=at)


def test_05_4_every_token_asks_its_own_row(rows: Any) -> None:
    """A mixed step: a decode of cleo in row 2, a chunk of ana in row 0."""
    batch = rows.batch()
    rows.seat(batch, 0, "ana", [1] * 7, blocks=[7, 3])
    rows.seat(batch, 1, "ben", [1] * 4, blocks=[8])
    rows.seat(batch, 2, "cleo", [1] * 9, blocks=[5, 1, 6])
    slots = batch.slot_mapping(rows.array([2, 0, 0, 0], "int64"), rows.array([8, 3, 4, 5], "int64"))
    at = "rows 2 0 0 0, positions 8 3 4 5; cleo has blocks 5 1 6, ana 7 3"
    expect(slots.tolist(), [24, 31, 12, 13], at=at)


def test_05_4_a_slot_needs_more_bits_than_a_block(rows: Any) -> None:
    """Block ids are int32; block 2**29 times 16 no longer fits, so slots are int64."""
    batch = rows.batch(block_size=16)
    rows.seat(batch, 0, "ana", [1] * 4, blocks=[2**29])
    slots = batch.slot_mapping(rows.array([0], "int64"), rows.array([3], "int64"))
    expect(slots.tolist(), [2**33 + 3], at="block 2**29, block size 16, position 3")
    expect(str(slots.dtype), "int64", at="dtype of the slots")


# ------------------------------------------------------------------ rows to sample


def flat(rows: Any, starts: list[int]) -> FlatBatch:
    """A flat batch of which only the starts matter here."""
    empty = rows.array([], "int64")
    return FlatBatch(empty, empty, rows.array(starts))


def test_05_4_a_request_with_all_tokens_computed_is_sampled(rows: Any) -> None:
    """A decode and a complete prompt get a token; a chunk in the middle does not."""
    sampled, indices = rows_to_sample(
        flat(rows, [0, 1, 5, 8]), rows.array([10, 8, 3]), rows.array([10, 20, 3])
    )
    at = "stretches of 1, 4 and 3 tokens; computed after the step 10, 8, 3 of 10, 20, 3"
    expect(sampled.tolist(), [0, 2], at=f"{at}: who is sampled")
    expect(indices.tolist(), [0, 7], at=f"{at}: the last token of each of them")


def test_05_4_a_step_without_a_request_to_sample(rows: Any) -> None:
    """A step of chunks alone gives no token."""
    sampled, indices = rows_to_sample(flat(rows, [0, 4]), rows.array([4]), rows.array([9]))
    expect(sampled.tolist(), [], at="4 of 9 tokens are computed: who is sampled")
    expect(indices.tolist(), [], at="4 of 9 tokens are computed: last tokens")


def test_05_4_the_last_token_decides(rows: Any) -> None:
    """Each stretch's last token, as int64 indices into the flat batch."""
    sampled, indices = rows_to_sample(
        flat(rows, [0, 1, 2, 7, 9]), rows.array([3, 6, 5, 2]), rows.array([3, 6, 5, 2])
    )
    expect(sampled.tolist(), [0, 1, 2, 3], at="four requests, all complete")
    expect(indices.tolist(), [0, 1, 6, 8], at="starts 0 1 2 7 9: last tokens")
    expect(str(indices.dtype), "int64", at="dtype of the last tokens")


# ------------------------------------------------------------------ sampled tokens


def test_05_4_a_sampled_token_is_the_next_input(rows: Any) -> None:
    """It goes behind the known tokens of its row, and the row has one more."""
    batch = rows.batch()
    rows.seat(batch, 0, "ana", [5, 8, 2])
    rows.seat(batch, 1, "ben", [4])
    batch.append_tokens(rows.array([0, 1], "int64"), rows.array([70, 80], "int64"))
    at = "ana samples 70, ben 80"
    expect(rows.show(batch, "ana")["tokens"], [5, 8, 2, 70], at=f"{at}: ana's row")
    expect(rows.show(batch, "ben")["tokens"], [4, 80], at=f"{at}: ben's row")


def test_05_4_tokens_and_rows_belong_together(rows: Any) -> None:
    """Rows come in the order of the flat batch, and rows in between are left alone."""
    batch = rows.batch()
    states = [rows.seat(batch, row, name, [row]) for row, name in enumerate(("ana", "ben", "cleo"))]
    batch.append_tokens(rows.array([2, 0], "int64"), rows.array([90, 70], "int64"))
    at = "cleo in row 2 samples 90, ana in row 0 samples 70, ben nothing"
    seen = {name: rows.show(batch, name)["tokens"] for name in ("ana", "ben", "cleo")}
    expect(seen, {"ana": [0, 70], "ben": [1], "cleo": [2, 90]}, at=at)
    outputs = [state.output_token_ids for state in states]
    expect(outputs, [[70], [], [90]], at=f"{at}: output_token_ids of their states")


def test_05_4_the_state_gets_plain_numbers(rows: Any) -> None:
    """The state outlives the row; its output is a list of ints, like the prompt."""
    batch = rows.batch()
    state = rows.seat(batch, 0, "ana", [5])
    for token in (70, 71):
        batch.append_tokens(rows.array([0], "int64"), rows.array([token], "int64"))
    expect(state.output_token_ids, [70, 71], at="ana samples 70, then 71: her output")
    kinds = {type(token).__name__ for token in state.output_token_ids}
    expect(kinds, {"int"}, at="types of the tokens in her output")


def test_05_4_a_row_can_be_filled_to_its_end(rows: Any) -> None:
    """A row holds max_model_len tokens, the last one included."""
    batch = rows.batch(max_model_len=8)
    rows.seat(batch, 0, "ana", [5] * 7)
    batch.append_tokens(rows.array([0], "int64"), rows.array([70], "int64"))
    expect(rows.show(batch, "ana")["tokens"], [5] * 7 + [70], at="7 of 8 tokens, one is sampled")
