"""Change request 2: condense keeps the order."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.worker.input_batch import CachedRequestState, InputBatch


def batch_of(names: str) -> Any:
    batch = InputBatch(8, 16, 4)
    for number, name in enumerate(names):
        state = CachedRequestState(name, [10 * number, 10 * number + 1], SamplingParams(), None)
        batch.add_request(state, [number + 1], 1)
    return batch


def test_change_2_rows_keep_their_order() -> None:
    """b and d end; a, c and e keep their order."""
    batch = batch_of("abcde")
    batch.remove_request("b")
    batch.remove_request("d")
    batch.condense()
    names = [state.req_id for state in batch.rows]
    expect(names, ["a", "c", "e"], at="a - c - e, then condense()")


def test_change_2_all_moves_along() -> None:
    """After a move the row's tokens and blocks are those of its request."""
    batch = batch_of("abc")
    batch.remove_request("a")
    batch.condense()
    expect(batch.block_table[:2, 0].tolist(), [2, 3], at="b has block 2, c has block 3")
    expect(batch.req_id_to_row, {"b": 0, "c": 1}, at="a has ended")
