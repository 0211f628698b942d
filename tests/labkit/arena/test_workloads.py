"""The workloads repeat by seed, keep their limits, and are what they say they are."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from labkit.arena.workloads import TOKEN, WORKLOADS, Workload, find_workload

each = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))


@each
def test_a_seed_decides_everything(workload: Workload) -> None:
    assert list(workload.arrivals(3)) == list(workload.arrivals(3))
    assert list(workload.arrivals(3)) != list(workload.arrivals(4))


@each
def test_more_requests_begin_with_the_same_ones(workload: Workload) -> None:
    assert list(workload.arrivals(0, 120))[:50] == list(workload.arrivals(0, 50))


@each
def test_arrivals_come_in_order_and_fit_every_limit(workload: Workload) -> None:
    """So that every policy accepts them, those that cannot split a prompt too."""
    arrivals = list(workload.arrivals(0, 1000))
    assert len(arrivals) == 1000
    assert all(a.time <= b.time for a, b in pairwise(arrivals))
    limits, cache = workload.scheduler, workload.cache
    assert cache.num_gpu_blocks is not None
    capacity = (cache.num_gpu_blocks - 1) * cache.block_size
    longest = max(a.prompt_len + a.max_tokens for a in arrivals)
    assert longest <= min(limits.max_num_batched_tokens, limits.max_model_len, capacity)
    assert all(a.prompt_len >= 1 and a.max_tokens >= 2 for a in arrivals)
    assert {a.priority for a in arrivals} == set(workload.slos)


@each
def test_prompts_hold_their_text(workload: Workload) -> None:
    for arrival in workload.arrivals(0, 50):
        assert len(arrival.tokens()) == arrival.prompt_len


def test_a_turn_of_a_chat_repeats_what_was_said_before_it() -> None:
    arrivals = list(WORKLOADS["chat"].arrivals(0, 400))
    times = {a.parts: a.time for a in arrivals}
    later = [a for a in arrivals if len(a.parts) > 2]
    assert len(later) > 200
    for turn in later:
        *history, answer, question = turn.parts
        assert times[tuple(history)] < turn.time
        assert set(answer) == {TOKEN} and TOKEN not in question
    systems = {a.parts[0] for a in arrivals}
    assert len(systems) == 4


def test_an_agent_forks_into_three_plans_that_share_all_but_the_last_piece() -> None:
    arrivals = list(WORKLOADS["agents"].arrivals(0, 400))
    forks = Counter((a.time, a.parts[:-1]) for a in arrivals)
    plans = [a for a in arrivals if forks[a.time, a.parts[:-1]] == 3]
    assert len(plans) > 100 and all(len(a.parts[-1]) == 12 for a in plans)
    assert len({a.parts[0] for a in arrivals}) == 1, "one description of the tools"


def test_texts_that_are_not_shared_differ() -> None:
    first_tokens = [a.tokens()[0] for a in WORKLOADS["steady"].arrivals(0, 300)]
    assert len(set(first_tokens)) == 300


def test_an_unknown_workload_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'documents'"):
        find_workload("document")
