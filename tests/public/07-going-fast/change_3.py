"""Change request 3: an answer stays until the second replay after it."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect

STEPS = (
    ([5, 6, 7], [1, 1, 1], [[1], [2], [3]]),
    ([9], [2], [[1]]),
    ([8, 8], [2, 2], [[2], [3]]),
)
"""Three replays, of 3, 1 and 2 rows."""


def test_change_3_an_answer_outlives_the_next_replay(graphs: Any, step: Any) -> None:
    """Bucket 4, then bucket 1: the first answer still says what it said."""
    mine = graphs()
    first = mine.replay(*step(*STEPS[0]))
    said = first.tolist()
    mine.replay(*step(*STEPS[1]))
    expect(first.tolist(), said, at="answer 1, after replay 2")


def test_change_3_two_tensors_take_turns(graphs: Any, step: Any) -> None:
    """Answer 3 lies where answer 1 lay, and answer 2 elsewhere, whatever the buckets."""
    mine = graphs()
    places = [mine.replay(*step(*entry)).data_ptr() for entry in STEPS]
    turns = [place == places[0] for place in places]
    expect(turns, [True, False, True], at="replays of 3, 1 and 2 rows: lies where answer 1 lay")


def test_change_3_a_step_without_a_graph_takes_no_turn(graphs: Any, step: Any) -> None:
    """Five rows have no bucket; the answer before is safe from the next replay all the same."""
    mine = graphs()
    first = mine.replay(*step(*STEPS[0]))
    said = first.tolist()
    none = mine.replay(*step([1] * 5, [1] * 5, [[1], [2], [3], [4], [5]]))
    mine.replay(*step(*STEPS[1]))
    expect((none, first.tolist()), (None, said), at="a step of 5 rows between two replays")
