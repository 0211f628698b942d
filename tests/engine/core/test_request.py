"""Requests and their statuses (rules R1 to R5)."""

from __future__ import annotations

import itertools

import pytest

from mini_vllm.core.block_hash import BlockHasher
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams
from tests.engine.core.build import make_request

S = RequestStatus
UNFINISHED = [s for s in S if s <= S.PREEMPTED]
FINISHED = [s for s in S if s > S.PREEMPTED]


def test_r01_statuses_stand_in_upstreams_order() -> None:
    assert [s.name for s in S] == [
        "WAITING",
        "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR",
        "WAITING_FOR_REMOTE_KVS",
        "WAITING_FOR_STREAMING_REQ",
        "RUNNING",
        "PREEMPTED",
        "FINISHED_STOPPED",
        "FINISHED_LENGTH_CAPPED",
        "FINISHED_ABORTED",
        "FINISHED_IGNORED",
        "FINISHED_ERROR",
        "FINISHED_REPETITION",
    ]
    assert str(S.RUNNING) == "RUNNING"
    assert list(S) == sorted(S)


def test_r01_finished_is_everything_after_preempted() -> None:
    assert [S.is_finished(s) for s in S] == [False] * 6 + [True] * 6
    assert [S.is_blocked(s) for s in S] == [False] + [True] * 3 + [False] * 8


def test_r01_finish_reasons() -> None:
    reasons = [S.get_finished_reason(s) for s in FINISHED]
    assert reasons == ["stop", "length", "abort", "length", "error", "repetition"]
    assert [S.get_finished_reason(s) for s in UNFINISHED] == [None] * 6


def test_transitions_are_exactly_those_of_the_diagram() -> None:
    blocked = UNFINISHED[1:4]
    allowed = {(S.WAITING, S.RUNNING), (S.RUNNING, S.PREEMPTED), (S.PREEMPTED, S.RUNNING)}
    allowed |= {(S.WAITING, b) for b in blocked} | {(S.PREEMPTED, b) for b in blocked}
    allowed |= {(b, S.WAITING) for b in blocked}
    allowed |= set(itertools.product(UNFINISHED, FINISHED))
    for old, new in itertools.product(S, S):
        assert S.can_become(old, new) == ((old, new) in allowed), (old, new)


def test_transition_to_refuses_and_changes_nothing() -> None:
    request = make_request("r0", 3)
    with pytest.raises(ValueError, match=r"'r0' cannot go WAITING -> PREEMPTED"):
        request.transition_to(S.PREEMPTED)
    assert request.status == S.WAITING and not request.is_finished
    request.transition_to(S.FINISHED_ABORTED)
    assert request.is_finished
    with pytest.raises(ValueError, match="FINISHED_ABORTED -> FINISHED_STOPPED"):
        request.transition_to(S.FINISHED_STOPPED)


def test_r02_counts_of_tokens() -> None:
    """3 of prompt, 2 of output, 2 drafts: 5 certain, 7 with drafts."""
    prompt = [1, 2, 3]
    request = Request("r0", prompt)
    assert request.num_computed_tokens == 0
    request.append_output_token_ids(4)
    request.append_output_token_ids([5])
    request.spec_token_ids = [6, 7]
    assert request.num_prompt_tokens == 3 and request.num_output_tokens == 2
    assert request.num_tokens == 5 and request.num_tokens_with_spec == 7
    assert request.output_token_ids == [4, 5] and request.all_token_ids == [1, 2, 3, 4, 5]
    prompt.append(99)
    assert request.prompt_token_ids == [1, 2, 3], "the prompt is copied"


def test_r03_a_block_is_hashed_when_it_becomes_full() -> None:
    """Block size 4, prompt 7: one hash at first, the second with the first output token."""
    request = make_request("r0", 7)
    request.set_block_hasher(BlockHasher(4, b"root"))
    assert len(request.block_hashes) == 1
    first = request.block_hashes[0]
    request.append_output_token_ids(1)
    assert len(request.block_hashes) == 2
    request.append_output_token_ids([2, 3, 4])
    assert len(request.block_hashes) == 2
    request.append_output_token_ids([5, 6, 7, 8, 9])
    assert len(request.block_hashes) == 4 and request.block_hashes[0] == first
    fresh = make_request("r1", request.all_token_ids)
    fresh.set_block_hasher(BlockHasher(4, b"root"))
    assert fresh.block_hashes == request.block_hashes, "bit by bit or at once, all the same"


def test_r04_order_is_priority_then_arrival_then_id() -> None:
    a = make_request("a", 1, priority=1, arrival=0.0)
    b = make_request("b", 1, priority=0, arrival=9.0)
    c = make_request("c", 1, priority=1, arrival=0.0)
    d = make_request("d", 1, priority=1, arrival=-1.0)
    assert [r.request_id for r in sorted([c, a, d, b])] == ["b", "d", "a", "c"]
    assert not a < a


def test_r05_max_tokens_none_is_no_limit_of_its_own() -> None:
    assert make_request("r0", 3, max_tokens=None).max_tokens is None
    assert make_request("r0", 3, max_tokens=1000).max_tokens == 1000


def test_ignore_eos_means_that_there_is_no_eos() -> None:
    assert make_request("r0", 1, eos=2).eos_token_id == 2
    assert make_request("r0", 1, eos=2, ignore_eos=True).eos_token_id is None


def test_defaults_are_greedy_and_now() -> None:
    first, second = Request("a", [1]), Request("b", [1])
    assert first.sampling_params.temperature == 0.0
    assert 0 < first.arrival_time <= second.arrival_time
    assert Request("a", [1], arrival_time=0.0).arrival_time == 0.0
    assert first.stop_reason is None and first.num_preemptions == 0


def test_prompt_logprobs_skip_the_prefix_cache() -> None:
    assert not make_request("r0", 1).skip_reading_prefix_cache
    params = SamplingParams(prompt_logprobs=0)
    assert Request("r0", [1], params).skip_reading_prefix_cache


def test_repr_shows_progress() -> None:
    assert repr(make_request("r0", 3)) == "Request('r0', WAITING, computed 0 of 3+0 tokens)"
