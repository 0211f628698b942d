"""Task 07.3: record a graph for each bucket, and replay the right one."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.attention import AttentionMetadata


def test_07_3_a_graph_for_every_bucket(graphs: Any) -> None:
    """The largest is recorded first: smaller ones can use its memory again."""
    mine = graphs()
    expect(sorted(mine.graphs), [1, 2, 4], at="buckets that have a graph after capture()")
    expect(mine.forward.calls, [4, 2, 1], at="rows of the recorded passes, in order")


def test_07_3_each_graph_reads_the_static_inputs(graphs: Any, step: Any) -> None:
    """What was not in the tensors during the recording counts at the replay."""
    mine = graphs()
    mine.inputs.fill(*step([5, 6], [1, 1], [[1], [2]]), 2)
    replay, output = mine.graphs[2]
    replay()
    expect(output.tolist(), [[5.0], [6.0]], at="graph of bucket 2, after filling 5 and 6")


def test_07_3_a_replay_runs_at_the_steps_positions(graphs: Any, step: Any) -> None:
    """Positions are an input like the ids: the recording must read the static tensor."""
    mine = graphs()
    mine.replay(*step([5, 6], [4, 2], [[1], [2]]))
    at = "two requests whose new tokens have the positions 3 and 1: what the model was given"
    expect(mine.forward.positions, [3, 1], at=at)


def test_07_3_replay_answers_as_the_model_does(graphs: Any, step: Any, toy: Any) -> None:
    """Three steps of 3, 2 and 4 requests: each sum is that of the request's own tokens."""
    mine, direct = graphs(), toy()
    steps = [
        ([5, 6, 7], [1, 1, 1], [[1], [2], [3]]),
        ([8, 9], [2, 2], [[1], [3]]),
        ([1, 2, 3, 4], [3, 2, 3, 1], [[1], [2], [3], [4]]),
    ]
    for number, (tokens, lens, tables) in enumerate(steps):
        expected = direct(*step(tokens, lens, tables)).tolist()
        yours = mine.replay(*step(tokens, lens, tables))
        at = f"step {number}: hidden states of {len(tokens)} requests"
        expect(None if yours is None else yours.tolist(), expected, at=at, tokens=tokens, lens=lens)


def test_07_3_padding_leaves_no_trace(graphs: Any, step: Any) -> None:
    """3 requests in bucket 4: after the step, three slots have changed and no fourth."""
    mine = graphs()
    mine.replay(*step([1, 2, 3, 4], [1, 1, 1, 1], [[1], [2], [3], [4]]))
    before = mine.forward.cache.clone()
    mine.replay(*step([9, 9, 9], [2, 2, 2], [[1], [2], [3]]))
    changed = (mine.forward.cache != before).nonzero().flatten().tolist()
    expect(changed, [5, 9, 13], at="slots written by a step of 3 requests in bucket 4")


def test_07_3_the_answer_has_one_row_a_request(graphs: Any, step: Any) -> None:
    """Rows of padding are cut off, without a copy."""
    mine = graphs()
    hidden = mine.replay(*step([1, 2, 3], [1, 1, 1], [[1], [2], [3]]))
    expect(tuple(hidden.shape), (3, 1), at="shape of the hidden states of 3 requests in bucket 4")
    same = hidden.data_ptr() == mine.graphs[4][1].data_ptr()
    expect(same, True, at="the answer is a view of the graph's own output")


def test_07_3_the_model_is_not_called_for_another_bucket(graphs: Any, step: Any) -> None:
    """One request uses the graph of one row, not the largest."""
    mine = graphs()
    mine.forward.calls.clear()
    mine.replay(*step([1], [1], [[1]]))
    expect(mine.forward.calls, [1], at="rows of the pass that a step of 1 request ran")


def test_07_3_steps_without_a_graph_are_declined(graphs: Any, step: Any) -> None:
    """None, and nothing filled or run: the runner then launches the step itself."""
    mine = graphs()
    mine.forward.calls.clear()
    five = step([1] * 5, [1] * 5, [[1]] * 5)
    expect(mine.replay(*five), None, at="5 requests, buckets 1 2 4")
    mixed = AttentionMetadata.from_lists([1, 2], [3, 2], [[1], [2]], 4)
    tokens, positions = torch.tensor([7, 8, 9]), torch.tensor([2, 0, 1])
    expect(mine.replay(tokens, positions, mixed), None, at="a decode beside a prefill of 2 tokens")
    not_recorded = graphs(capture=False)
    expect(not_recorded.replay(*step([1], [1], [[1]])), None, at="before capture()")
    expect(mine.forward.calls, [], at="passes that ran for the declined steps")
    expect(mine.inputs.slot_mapping.tolist(), [-1] * 4, at="slots after the declined steps")
