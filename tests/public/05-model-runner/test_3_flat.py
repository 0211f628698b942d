"""Task 05.3: a ragged batch, laid flat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit.inside.cost import steps
from labkit.testing import expect
from mini_vllm.worker.input_batch import decodes_first, flatten_tokens


def test_05_3_stretches_lie_end_to_end(rows: Any) -> None:
    """Two decodes and a prompt: whose each token is, where it stands, where each begins."""
    flat = flatten_tokens(rows.array([1, 1, 3]), rows.array([9, 4, 0]))
    at = "scheduled [1, 1, 3], computed [9, 4, 0]"
    expect(flat.req_indices.tolist(), [0, 1, 2, 2, 2], at=f"{at}: req_indices")
    expect(flat.positions.tolist(), [9, 4, 0, 1, 2], at=f"{at}: positions")
    expect(flat.query_start_loc.tolist(), [0, 1, 2, 5], at=f"{at}: query_start_loc")
    few, many = (steps(flatten_tokens, *[rows.array([3] * n)] * 2) for n in (8, 512))
    assert many < 1.5 * few, f"8 requests: {few} steps of Python; 512: {many}. There is a loop"


def test_05_3_a_chunk_goes_on_where_the_last_one_ended(rows: Any) -> None:
    """Positions count in the request, not in the step."""
    flat = flatten_tokens(rows.array([4, 2]), rows.array([8, 3]))
    at = "scheduled [4, 2], computed [8, 3]: positions"
    expect(flat.positions.tolist(), [8, 9, 10, 11, 3, 4], at=at)


@pytest.mark.parametrize(("count", "computed"), [(1, 0), (1, 15), (6, 0), (6, 10)])
def test_05_3_one_request_alone(rows: Any, count: int, computed: int) -> None:
    """The smallest batch: one stretch."""
    flat = flatten_tokens(rows.array([count]), rows.array([computed]))
    at = f"scheduled [{count}], computed [{computed}]"
    positions = list(range(computed, computed + count))
    expect(flat.positions.tolist(), positions, at=f"{at}: positions")
    expect(flat.req_indices.tolist(), [0] * count, at=f"{at}: req_indices")
    expect(flat.query_start_loc.tolist(), [0, count], at=f"{at}: query_start_loc")


def test_05_3_the_types_are_those_that_kernels_read(rows: Any) -> None:
    """query_start_loc is int32, as kernels want it; indices and positions are int64."""
    flat = flatten_tokens(rows.array([2, 1]), rows.array([0, 7]))
    kinds = {
        "req_indices": str(flat.req_indices.dtype),
        "positions": str(flat.positions.dtype),
        "query_start_loc": str(flat.query_start_loc.dtype),
    }
    right = {"req_indices": "int64", "positions": "int64", "query_start_loc": "int32"}
    expect(kinds, right, at="dtypes of the flat batch")


def test_05_3_the_arguments_stay_as_they_are(rows: Any) -> None:
    """num_computed belongs to the batch; flattening only reads it."""
    scheduled, computed = rows.array([2, 3]), rows.array([1, 5])
    flatten_tokens(scheduled, computed)
    expect(scheduled.tolist(), [2, 3], at="num_scheduled after the call")
    expect(computed.tolist(), [1, 5], at="num_computed after the call")


def test_05_3_decodes_go_first(rows: Any) -> None:
    """Requests with one token before all others; else the scheduler's order stays."""
    at = "scheduled [5, 1, 3, 1]: the order as indices"
    expect(decodes_first([5, 1, 3, 1]).tolist(), [1, 3, 0, 2], at=at)
    many = [7, 1, 6, 1, 5, 1, 4, 1, 3, 1, 2, 1, 7, 1, 6, 1, 5, 1, 4]
    right = [i for i in range(19) if many[i] == 1] + [i for i in range(19) if many[i] != 1]
    expect(decodes_first(many).tolist(), right, at=f"scheduled {many}: the order as indices")


def test_05_3_nothing_to_reorder(rows: Any) -> None:
    """Only decodes, only prompts, or a single request."""
    for counts in ([1, 1, 1], [4, 2, 9], [3], [1]):
        at = f"scheduled {counts}: the order as indices"
        expect(decodes_first(counts).tolist(), list(range(len(counts))), at=at)


def test_05_3_the_counts_come_from_a_dictionary(rows: Any) -> None:
    """The caller passes num_scheduled_tokens.values(): it can be walked, but not indexed."""
    order = decodes_first({"ana": 3, "ben": 1}.values())
    expect(order.tolist(), [1, 0], at="{'ana': 3, 'ben': 1}.values()")
    assert isinstance(order, np.ndarray), f"the order is a {type(order).__name__}, not an array"
