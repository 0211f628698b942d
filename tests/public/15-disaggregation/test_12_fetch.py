"""Task 15.12: fetch blocks from a peer, with a deadline."""

from __future__ import annotations

import math
from typing import Any

from labkit.testing import expect


def test_15_12_an_answer_is_put_in_place(lab: Any) -> None:
    """A request with an answer is placed, named, and told of; the others go on."""
    south = lab.South()
    south.fetches_now("ada", math.inf).set_result(b"kv")
    south.fetches_now("ben", math.inf)
    south.fetches_now("cyd", math.inf).set_result(b"kv")
    _, received = south.get_finished(set())
    expect(received, {"ada", "cyd"}, at="ben alone has no answer, and cyd asked after him")
    both = ["ada", "cyd"]
    expect(sorted(south.placed), both, at="placed, in any order")
    expect(sorted(south.told), both, at="the other side told")
    expect(list(south.fetches), ["ben"], at="still on their way")


def test_15_12_a_deadline_ends_it(lab: Any) -> None:
    """Past its deadline a fetch is over: its blocks are invalid, and it is named all the same."""
    south = lab.South()
    south.fetches_now("ada", -1.0, blocks=[3, 4])
    _, received = south.get_finished(set())
    expect(received, {"ada"}, at="ada's deadline has passed")
    expect(south.invalid, {3, 4}, at="her blocks")
    expect(south.placed, [], at="nothing was put anywhere")
    expect(south.told, ["ada"], at="the other side need not hold on")
    south.fetches_now("ben", -1.0, blocks=[7])
    south.get_finished(set())
    expect(south.get_block_ids_with_load_errors(), {3, 4, 7}, at="ben's is over as well")


def test_15_12_a_late_answer_is_dropped(lab: Any) -> None:
    """What comes after the deadline is not written: the blocks may be another request's."""
    south = lab.South()
    answer = south.fetches_now("ada", -1.0)
    south.get_finished(set())
    answer.set_result(b"kv")
    expect(south.get_finished(set())[1], set(), at="the answer comes a step later")
    expect(south.placed, [], at="afterwards")


def test_15_12_an_answer_counts_even_at_the_deadline(lab: Any) -> None:
    """An answer that has arrived counts."""
    south = lab.South()
    south.fetches_now("ada", -1.0).set_result(b"kv")
    south.get_finished(set())
    expect(south.placed, ["ada"], at="the answer is there, and the deadline has passed")


def test_15_12_what_is_sent_is_reported_too(lab: Any) -> None:
    """The first set names those whose lease is over."""
    south = lab.South()
    south.leases = lab.ended_leases("cyd")
    sent, received = south.get_finished(set())
    expect((sent, received), ({"cyd"}, set()), at="cyd's lease is over")
