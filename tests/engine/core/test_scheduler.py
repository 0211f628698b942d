"""The scheduler's rules (R5 to R25, R36 to R42), its historic bugs, and where we differ.

Prompts of different requests share nothing unless a test says so. Block tables are small
enough to redo by hand: block 0 is the null block, ids are given out from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import NoProgressError, PauseState, Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.request import Request, RequestStatus
from tests.engine.core.build import (
    TOKEN,
    add,
    drain,
    finish_step,
    ids,
    make_request,
    make_scheduler,
    step,
    table,
)

S = RequestStatus
PROMPT = list(range(100, 120))
history = pytest.mark.history


def running_scheduler(*requests: Request, **config: Any) -> Scheduler:
    """A scheduler after the step that admitted all of ``requests``."""
    scheduler = make_scheduler(**config)
    add(scheduler, *requests)
    step(scheduler)
    assert ids(scheduler.running) == ids(requests)
    return scheduler


# ------------------------------------------------------------------ requests in and out


def test_add_request_refuses_an_id_in_use() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", 3))
    with pytest.raises(ValueError, match=r"'a' is in use by an unfinished request"):
        scheduler.add_request(make_request("a", 3))
    scheduler.finish_requests("a", S.FINISHED_ABORTED)
    scheduler.add_request(make_request("a", 3))
    assert ids(scheduler.waiting) == ["a"]


def test_r05_max_tokens_none_runs_to_the_models_length() -> None:
    request = make_request("a", 3, max_tokens=None)
    scheduler = make_scheduler(max_model_len=10)
    add(scheduler, request)
    drain(scheduler)
    assert request.num_tokens == 10 and request.status == S.FINISHED_LENGTH_CAPPED


def test_r06_a_prompt_of_max_model_len_yields_one_token() -> None:
    request = make_request("a", 8)
    scheduler = make_scheduler(max_model_len=8)
    add(scheduler, request)
    assert step(scheduler).num_scheduled_tokens == {"a": 8}
    assert request.num_output_tokens == 1 and request.status == S.FINISHED_LENGTH_CAPPED


@history("vllm#18485", "vllm#12545", "vllm#13173")
@pytest.mark.parametrize("state", ["waiting", "skipped", "chunked", "running", "preempted"])
def test_bug_vllm_18485_abort_in_every_state(state: str) -> None:
    """Aborting a request that had never run, or while iterating over a set, crashed."""
    scheduler = make_scheduler(blocks=4, block_size=1, budget=3, extensions=[SchedulerExtension()])
    victim = make_request("v", 1 if state in ("running", "preempted") else 4)
    if state == "skipped":
        victim.transition_to(S.WAITING_FOR_REMOTE_KVS)
    if state == "preempted":
        add(scheduler, make_request("a", 1), make_request("b", 1))
    add(scheduler, victim)
    if state != "waiting":
        step(scheduler)
    if state == "preempted":
        step(scheduler)
        assert victim.status == S.PREEMPTED
    assert scheduler.finish_requests(["v", "v", "unknown"], S.FINISHED_ABORTED) == ["v"]
    scheduler.check_integrity()
    assert victim.status == S.FINISHED_ABORTED and victim.is_finished
    assert "v" not in scheduler.requests and table(scheduler, "v") == []
    assert scheduler.finish_requests("v", S.FINISHED_ABORTED) == []
    output = scheduler.schedule()
    assert output.finished_req_ids == {"v"} and "v" not in output.num_scheduled_tokens


def test_finish_requests_none_means_all() -> None:
    scheduler = make_scheduler(seqs=1)
    add(scheduler, make_request("a", 3), make_request("b", 3))
    step(scheduler)
    assert scheduler.finish_requests(None, S.FINISHED_ERROR) == ["a", "b"]
    assert not scheduler.has_unfinished_requests() and scheduler.has_requests()
    assert scheduler.kv_cache_manager.num_free_blocks == 9
    with pytest.raises(ValueError, match="RUNNING is not a finished status"):
        scheduler.finish_requests(None, S.RUNNING)


def test_r42_one_more_step_tells_the_worker_of_finished_requests() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", 3, max_tokens=1))
    first = step(scheduler)
    assert first.finished_req_ids == set()
    assert not scheduler.has_unfinished_requests() and scheduler.has_requests()
    last = step(scheduler)
    assert last.finished_req_ids == {"a"} and last.total_num_scheduled_tokens == 0
    assert not scheduler.has_requests()


# ------------------------------------------------------------------ the running pass


@pytest.mark.parametrize(
    ("wanted", "computed", "budget", "threshold", "expected"),
    [
        (1, 5, 16, 0, 1),
        (20, 0, 16, 0, 16),
        (20, 0, 16, 6, 6),
        (6, 0, 16, 6, 6),
        (5, 0, 16, 6, 5),
        (20, 0, 4, 6, 4),
        (9, 60, 16, 0, 3),
        (9, 60, 2, 0, 2),
        (1, 63, 16, 0, 0),
        (0, 5, 16, 0, 0),
        (0, 64, 16, 0, 0),
        (4, 64, 16, 0, 0),
    ],
)
def test_r12_clamp(wanted: int, computed: int, budget: int, threshold: int, expected: int) -> None:
    """Threshold, then budget, then no position at or after ``max_model_len - 1`` = 63."""
    scheduler = make_scheduler(threshold=threshold)
    assert scheduler._clamp_new_tokens(wanted, computed, budget) == expected


def test_r10_the_budget_counts_all_tokens_of_a_step() -> None:
    """Budget 8: "a" takes 6 and "b" gets a chunk of 2; then 1 and 4; then 1 and 1."""
    scheduler = make_scheduler(budget=8)
    add(scheduler, make_request("a", 6), make_request("b", 6))
    assert step(scheduler).num_scheduled_tokens == {"a": 6, "b": 2}
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 4}
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 1}


@history("vllm#26385")
def test_r11_running_requests_are_served_in_order_of_admission() -> None:
    """Budget 2 and three decodes: the last one waits, and is not lost."""
    scheduler = make_scheduler(budget=2)
    add(scheduler, *(make_request(name, 1) for name in "abc"))
    step(scheduler)
    for _ in range(3):
        assert list(step(scheduler).num_scheduled_tokens) == ["a", "b"]
    assert ids(scheduler.waiting) == ["c"]
    scheduler.finish_requests("a", S.FINISHED_ABORTED)
    assert list(step(scheduler).num_scheduled_tokens) == ["b", "c"]


@history("vllm#16528", "vllm#15419")
def test_r12_long_prefill_threshold_caps_one_request() -> None:
    """Threshold 4: a prompt of 10 takes 4, 4, 2 and leaves budget to the short one behind it."""
    scheduler = make_scheduler(threshold=4)
    add(scheduler, make_request("long", 10), make_request("short", 3))
    outputs = [step(scheduler).num_scheduled_tokens for _ in range(4)]
    assert [o["long"] for o in outputs] == [4, 4, 2, 1]
    assert [o["short"] for o in outputs] == [3, 1, 1, 1]


class Limit(SchedulerExtension):
    """Allows a named request only so many tokens a step."""

    def __init__(self, request_id: str, tokens: int) -> None:
        self.request_id, self.tokens = request_id, tokens
        self.asked: list[tuple[str, int, int]] = []

    def limit_tokens(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        self.asked.append((request.request_id, num_computed_tokens, num_new_tokens))
        return min(num_new_tokens, self.tokens if request.request_id == self.request_id else 99)


def test_r13_a_request_with_nothing_to_compute_is_passed_over() -> None:
    limit = Limit("a", 99)
    scheduler = running_scheduler(make_request("a", 2), make_request("b", 2), extensions=[limit])
    limit.tokens = 0
    assert step(scheduler).num_scheduled_tokens == {"b": 1}
    limit.tokens = 1
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 1}


def admitted_in_order(priorities: Sequence[int], usable: int, **config: Any) -> Scheduler:
    """The same by hand: admission order is a, b, c whatever their priorities."""
    scheduler = make_scheduler(blocks=usable, block_size=1, **config)
    for i, name in enumerate("abc"):
        add(scheduler, make_request(name, 1, priority=0, arrival=float(i)))
    step(scheduler)
    for request, priority in zip(scheduler.running, priorities, strict=True):
        request.priority = priority
    assert [table(scheduler, name) for name in "abc"] == [[1], [2], [3]]
    return scheduler


def test_r14_fcfs_preempts_the_request_admitted_last() -> None:
    """4 blocks of 1 token; a, b, c hold one each. "a" takes 4; "b" needs one: "c" goes, and
    "b" gets its block 3."""
    scheduler = admitted_in_order([0, 0, 0], usable=4)
    victim = scheduler.requests["c"]
    output = scheduler.schedule()
    assert output.preempted_req_ids == ["c"]
    assert output.num_scheduled_tokens == {"a": 1, "b": 1}
    assert output.new_block_ids == {"a": [4], "b": [3]}
    assert ids(scheduler.running) == ["a", "b"] and ids(scheduler.waiting) == ["c"]
    assert victim.status == S.PREEMPTED


def test_r16_what_preemption_leaves_and_what_it_takes() -> None:
    scheduler = running_scheduler(make_request("a", 5), make_request("b", 5))
    request = scheduler.requests["b"]
    request.spec_token_ids = [1, 2]
    add(scheduler, make_request("new", 3))
    scheduler._preempt(request)
    assert request.status == S.PREEMPTED and request.num_preemptions == 1
    assert request.num_computed_tokens == 0 and request.spec_token_ids == []
    assert request.output_token_ids == [TOKEN] and request.num_tokens == 6
    assert ids(scheduler.running) == ["a"] and ids(scheduler.waiting) == ["b", "new"]
    assert table(scheduler, "b") == []
    scheduler.check_integrity()


def test_r16_several_victims_line_up_in_order_of_admission() -> None:
    """4 blocks; "a" is in the middle of its prompt (2 of 4) and wants 2 blocks more: "c" goes,
    then "b". Each is put in front, so "b" stands before "c" again."""
    scheduler = make_scheduler(blocks=4, block_size=1, threshold=2, reserve=False)
    add(scheduler, make_request("a", 4), make_request("b", 1), make_request("c", 1))
    add(scheduler, make_request("d", 1))
    step(scheduler)
    output = step(scheduler)
    assert output.preempted_req_ids == ["c", "b"]
    assert output.num_scheduled_tokens == {"a": 2}
    assert output.new_block_ids == {"a": [4, 3]}
    assert ids(scheduler.waiting) == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("priorities", "victim"),
    [([0, 2, 1], "b"), ([2, 1, 0], "a"), ([1, 1, 1], "c"), ([0, 1, 1], "c"), ([2, 0, 2], "c")],
)
def test_r14_priority_picks_the_largest_priority_then_the_latest(
    priorities: list[int], victim: str
) -> None:
    scheduler = admitted_in_order(priorities, usable=9, policy="priority")
    assert scheduler._pick_victim().request_id == victim


def test_r14_equal_victims_the_first_admitted_goes() -> None:
    """Same priority and arrival: ``max`` keeps the first; the id plays no part."""
    scheduler = admitted_in_order([5, 5, 5], usable=9, policy="priority")
    for request in scheduler.running:
        request.arrival_time = 1.0
    assert scheduler._pick_victim().request_id == "a"


@history("vllm#23346", "vllm#23713", "vllm#9272")
def test_r14_bug_vllm_23346_a_scheduled_victim_gives_everything_back() -> None:
    """A victim that was in the plan already stayed in it, and an assertion fell over it.

    5 blocks of 1 token, budget 3; a (least urgent), b and c hold 1, 2, 3; b brings a draft.
    a: takes block 4, budget 2. b: wants 2 blocks, 1 is free. a goes: its token comes back
    (budget 3), and so do blocks 4 and 1. b takes 5 and 4, budget 1. c takes 1.
    """
    scheduler = admitted_in_order([9, 0, 0], usable=5, budget=3, policy="priority")
    scheduler.requests["b"].spec_token_ids = [1]
    output = scheduler.schedule()
    assert output.preempted_req_ids == ["a"]
    assert output.num_scheduled_tokens == {"b": 2, "c": 1}
    assert output.total_num_scheduled_tokens == 3
    assert output.new_block_ids == {"b": [5, 4], "c": [1]}
    assert output.scheduled_cached_reqs.req_ids == ["b", "c"]
    assert output.scheduled_spec_decode_tokens == {"b": [1]}
    assert scheduler.waiting.peek_request().num_computed_tokens == 0
    scheduler.update_from_output(output, {"b": [1, 1], "c": [1]})
    scheduler.check_integrity()


@history("vllm#28558", "vllm#31876")
def test_bug_vllm_28558_a_scheduled_victims_drafts_leave_the_plan() -> None:
    """The victim's tokens were rolled back but not its drafts; later they crashed a grammar.

    5 blocks, budget 3: "a" takes 4 and 5 for its token and its draft, "b" finds none.
    """
    scheduler = admitted_in_order([9, 0, 0], usable=5, budget=3, policy="priority")
    victim = scheduler.requests["a"]
    victim.spec_token_ids = [1]
    scheduler.requests["c"].spec_token_ids = [2]
    output = scheduler.schedule()
    assert output.preempted_req_ids == ["a"] and victim.spec_token_ids == []
    assert output.num_scheduled_tokens == {"b": 1, "c": 2}
    assert output.scheduled_spec_decode_tokens == {"c": [2]}


def test_difference_a_scheduled_victims_planned_blocks_leave_the_prefix_cache() -> None:
    """Blocks are findable once planned. Those of a victim that was in the plan are never
    computed; upstream leaves them findable, and a request that hits them reads unwritten slots.

    7 blocks of 1 token. "a" (least urgent) has computed 2 of its 6 tokens, in blocks 1 and 2;
    "b" holds 3. "a" is planned for 2 more, in 4 and 5. "b" has 2 drafts and needs 3 blocks, but
    only 6 and 7 are free. "a" goes: free are 6 7 5 4 2 1, and "b" takes 6, 7 and 5. Block 4
    keeps the hash of a token that was never computed, unless the scheduler takes it away.
    """
    limit = Limit("a", 2)
    scheduler = make_scheduler(blocks=7, block_size=1, policy="priority", extensions=[limit])
    a = make_request("a", PROMPT[:6], priority=0)
    add(scheduler, a, make_request("b", 1, arrival=1.0))
    step(scheduler)
    a.priority = 9
    scheduler.requests["b"].spec_token_ids = [1, 2]
    output = step(scheduler)
    assert output.preempted_req_ids == ["a"] and output.new_block_ids == {"b": [6, 7, 5]}
    pool = scheduler.kv_cache_manager.block_pool
    findable = [pool.get_cached_block(h) is not None for h in a.block_hashes]
    assert findable == [True, True, False, False, False, False]


@history("vllm#26765")
def test_r15_a_request_that_preempts_itself_ends_the_pass() -> None:
    """4 blocks: "a" takes the last one. "b" is the least urgent, so it goes itself, and though
    its block 2 is free now, "c" gets nothing in this step."""
    scheduler = admitted_in_order([0, 9, 0], usable=4, policy="priority")
    output = scheduler.schedule()
    assert output.preempted_req_ids == ["b"]
    assert output.num_scheduled_tokens == {"a": 1}
    assert ids(scheduler.running) == ["a", "c"]


@history("vllm#49097")
def test_bug_vllm_49097_a_victim_that_was_passed_over_costs_the_next_one_its_turn() -> None:
    """Upstream's quirk, kept: "a" was passed over, not planned, so the position in ``running``
    does not move down with it, and "c" is not reached in this step.

    3 blocks, all held. "b" needs one: "a" goes, "b" gets block 1.
    """
    limit = Limit("a", 99)
    scheduler = admitted_in_order([9, 0, 0], usable=3, policy="priority", extensions=[limit])
    limit.tokens = 0
    output = scheduler.schedule()
    assert output.preempted_req_ids == ["a"] and output.new_block_ids == {"b": [1]}
    assert output.num_scheduled_tokens == {"b": 1}
    assert ids(scheduler.running) == ["b", "c"]


@history("MinivLLM#51")
def test_bug_minivllm_51_no_request_is_lost_at_the_cap_or_in_preemption() -> None:
    """The decode loop dropped the request in its hand when it met a cap or had to preempt."""
    scheduler = make_scheduler(blocks=5, block_size=1, seqs=3, budget=2)
    requests = [make_request(name, 1, max_tokens=3) for name in "abcd"]
    add(scheduler, *requests)
    for _ in range(4):
        step(scheduler)
        assert len(scheduler.requests) == len(scheduler.running) + len(scheduler.waiting)
    drain(scheduler)
    assert [r.num_output_tokens for r in requests] == [3, 3, 3, 3]


def test_r17_running_requests_report_only_new_blocks() -> None:
    """Prompt 7 in blocks of 4: 2 blocks; the 9th token brings the third."""
    scheduler = make_scheduler()
    add(scheduler, make_request("a", 7))
    assert step(scheduler).new_block_ids == {"a": [1, 2]}
    assert step(scheduler).new_block_ids == {}
    assert step(scheduler).new_block_ids == {"a": [3]}


# ------------------------------------------------------------------ the waiting pass


def test_r18_no_request_is_admitted_in_a_step_with_a_preemption() -> None:
    scheduler = admitted_in_order([0, 0, 0], usable=4)
    add(scheduler, make_request("d", 1))
    output = step(scheduler)
    assert output.preempted_req_ids == ["c"] and output.scheduled_new_reqs == []
    assert ids(scheduler.waiting) == ["c", "d"]


@history("nano-vllm: max_num_seqs bounds the batch only")
def test_r18_max_num_seqs_bounds_the_running_requests() -> None:
    """The cap bounded one batch, so ten requests held blocks under a cap of two."""
    scheduler = make_scheduler(seqs=2)
    add(scheduler, *(make_request(name, 2, max_tokens=2) for name in "abcde"))
    seen = []
    while scheduler.has_unfinished_requests():
        seen.append(list(step(scheduler).num_scheduled_tokens))
    assert seen == [["a", "b"], ["a", "b"], ["c", "d"], ["c", "d"], ["e"], ["e"]]


def test_r18_pausing() -> None:
    scheduler = running_scheduler(make_request("a", 2))
    add(scheduler, make_request("b", 2))
    scheduler.pause_state = PauseState.PAUSED_NEW
    assert step(scheduler).num_scheduled_tokens == {"a": 1}
    scheduler.pause_state = PauseState.PAUSED_ALL
    assert step(scheduler).num_scheduled_tokens == {}
    scheduler.pause_state = PauseState.UNPAUSED
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 2}


def test_r19_a_request_that_stays_is_unchanged() -> None:
    """ "b" hits a cached block but does not fit: nothing of the lookup is kept."""
    scheduler = make_scheduler(blocks=4)
    add(scheduler, make_request("a", PROMPT[:5], max_tokens=1))
    step(scheduler)
    add(scheduler, make_request("big", 9))
    step(scheduler)
    waiting = make_request("b", PROMPT[:10])
    add(scheduler, waiting)
    for _ in range(2):
        assert "b" not in step(scheduler).num_scheduled_tokens
        assert waiting.num_computed_tokens == waiting.num_cached_tokens == 0
        assert waiting.status == S.WAITING and ids(scheduler.waiting) == ["b"]
    assert scheduler.kv_cache_manager.prefix_cache_stats.requests == 2


def test_r20_no_length_clamp_for_waiting_requests() -> None:
    """A running request stops at position ``max_model_len - 2``; an admitted one does not."""
    scheduler = make_scheduler(max_model_len=8)
    add(scheduler, make_request("a", 8))
    assert scheduler.schedule().num_scheduled_tokens == {"a": 8}


def test_r20_without_chunked_prefill_a_prompt_waits_for_a_whole_budget() -> None:
    """Budget 8: "a" takes 5, "b" (4) does not fit, and "c" (1) may not overtake it."""
    scheduler = make_scheduler(budget=8, chunked=False)
    add(scheduler, make_request("a", 5), make_request("b", 4), make_request("c", 1))
    assert step(scheduler).num_scheduled_tokens == {"a": 5}
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 4, "c": 1}


def test_r20_a_budget_that_fits_exactly_is_enough() -> None:
    scheduler = make_scheduler(budget=8, chunked=False)
    add(scheduler, make_request("a", 8))
    assert step(scheduler).num_scheduled_tokens == {"a": 8}


@history("vllm#39608")
def test_bug_vllm_39608_the_threshold_chunks_even_with_chunking_off() -> None:
    """Upstream's quirk, kept: the threshold cuts first, and then the cut prompt fits."""
    scheduler = make_scheduler(budget=4, threshold=3, chunked=False)
    add(scheduler, make_request("a", 6))
    assert step(scheduler).num_scheduled_tokens == {"a": 3}
    assert step(scheduler).num_scheduled_tokens == {"a": 3}


def test_r21_no_request_overtakes_one_that_lacks_blocks() -> None:
    """2 of 6 blocks are free; a request of 4 blocks waits, and so does one of 1 behind it."""
    scheduler = running_scheduler(make_request("a", 15), blocks=6)
    add(scheduler, make_request("big", 16), make_request("small", 4))
    assert scheduler.kv_cache_manager.num_free_blocks == 2
    output = step(scheduler)
    assert output.num_scheduled_tokens == {"a": 1} and output.preempted_req_ids == []
    assert ids(scheduler.waiting) == ["big", "small"]


@history("vllm#25538", "vllm#37307")
def test_r21_bug_vllm_25538_the_whole_sequence_must_fit_at_admission() -> None:
    """Only the first chunk was asked for, so long prompts were admitted just to be preempted.

    5 blocks of 4, budget 16, two prompts of 12: "a" takes 3 blocks, and the 4 tokens that are
    left of the budget would give "b" a first chunk of 1 block. It needs 3 in the end.
    """
    counts = {}
    for reserve in (True, False):
        requests = [make_request(name, 12, max_tokens=4) for name in "ab"]
        scheduler = make_scheduler(blocks=5, reserve=reserve)
        add(scheduler, *requests)
        assert step(scheduler).num_scheduled_tokens == ({"a": 12} if reserve else {"a": 12, "b": 4})
        drain(scheduler)
        assert [r.num_output_tokens for r in requests] == [4, 4]
        counts[reserve] = sum(r.num_preemptions for r in requests)
    assert counts[True] == 0 and counts[False] > 0


def test_r22_new_requests_are_described_in_full() -> None:
    scheduler = make_scheduler()
    request = make_request("a", PROMPT[:5], eos=2, lora_name="l")
    add(scheduler, request)
    (new,) = scheduler.schedule().scheduled_new_reqs
    assert (new.req_id, new.prompt_token_ids, new.block_ids) == ("a", PROMPT[:5], [1, 2])
    assert (new.num_computed_tokens, new.eos_token_id, new.lora_name) == (0, 2, "l")
    assert new.sampling_params is request.sampling_params
    assert request.status == S.RUNNING


@history("nano-vllm@8d63a98", "nano-vllm#144-1", "MinivLLM@3d74cf3")
def test_r22_bug_nano_vllm_144_a_resumed_request_sends_all_its_tokens() -> None:
    """A resumed request sent only its last token to workers, or lost it.

    4 blocks of 1 token. Step 2 preempts "c" with its one output; step 5 finds room again.
    """
    scheduler = admitted_in_order([0, 0, 0], usable=4)
    step(scheduler)
    scheduler.finish_requests(["a", "b"], S.FINISHED_ABORTED)
    request = scheduler.requests["c"]
    output = scheduler.schedule()
    cached = output.scheduled_cached_reqs
    assert output.scheduled_new_reqs == [] and cached.req_ids == ["c"]
    assert cached.resumed_req_ids == {"c"}
    assert cached.all_token_ids == {"c": [*request.prompt_token_ids, TOKEN]}
    assert cached.num_computed_tokens == [0]
    assert output.num_scheduled_tokens == {"c": 2}
    assert output.new_block_ids == {"c": table(scheduler, "c")}
    assert len(output.new_block_ids["c"]) == 2
    finish_step(scheduler, output)
    following = scheduler.schedule()
    assert following.scheduled_cached_reqs.resumed_req_ids == set()
    assert following.scheduled_cached_reqs.all_token_ids == {}
    assert following.scheduled_cached_reqs.num_computed_tokens == [2]
    assert following.new_block_ids["c"] == table(scheduler, "c")[2:]


def test_r22_a_resumed_request_uses_the_cache_but_counts_its_first_hits() -> None:
    scheduler = running_scheduler(make_request("a", 9))
    request = scheduler.requests["a"]
    scheduler._preempt(request)
    output = step(scheduler)
    assert output.num_scheduled_tokens == {"a": 2}
    assert output.scheduled_cached_reqs.num_computed_tokens == [8]
    assert request.num_cached_tokens == 0 and request.num_preemptions == 1


def test_r25_computed_tokens_advance_inside_schedule() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", 6))
    output = scheduler.schedule()
    assert scheduler.requests["a"].num_computed_tokens == 6
    assert output.scheduled_new_reqs[0].num_computed_tokens == 0


@history("vllm#14915", "vllm#15307")
def test_r25_bug_vllm_14915_steps_can_be_planned_ahead() -> None:
    """Progress was counted after the forward pass, so a step planned meanwhile repeated it.

    Prompt 10, budget 4, no update in between: 4, 4, 2, and then there is nothing to plan until
    the sampled token is there.
    """
    scheduler = make_scheduler(budget=4)
    add(scheduler, make_request("a", 10))
    outputs = [scheduler.schedule() for _ in range(4)]
    assert [o.num_scheduled_tokens for o in outputs] == [{"a": 4}, {"a": 4}, {"a": 2}, {}]
    for output, sampled in zip(outputs, ({}, {}, {"a": [5]}, {}), strict=True):
        scheduler.update_from_output(output, sampled)
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1}


def test_r25_finished_ids_are_handed_over_once_and_for_good() -> None:
    scheduler = running_scheduler(make_request("a", 2), make_request("b", 2))
    scheduler.finish_requests("a", S.FINISHED_ABORTED)
    output = scheduler.schedule()
    scheduler.finish_requests("b", S.FINISHED_ABORTED)
    assert output.finished_req_ids == {"a"} and scheduler.finished_req_ids == {"b"}


@history("nano-vllm#208", "vllm#29387")
def test_r29_same_step_prefix_hit() -> None:
    """Two equal prompts of 9 in one step: 9 and 1 tokens, tables 1 2 3 and 1 2 4.

    One engine did this while it computed request by request, and read blocks that were still
    empty. It is right as long as every layer writes the whole batch before it reads.
    """
    scheduler = make_scheduler()
    add(scheduler, make_request("a", PROMPT[:9]), make_request("b", PROMPT[:9]))
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 9, "b": 1}
    assert output.new_block_ids == {"a": [1, 2, 3], "b": [1, 2, 4]}
    assert scheduler.requests["b"].num_cached_tokens == 8
    stats = scheduler.kv_cache_manager.prefix_cache_stats
    assert (stats.requests, stats.queries, stats.hits) == (2, 18, 8)


@history("nano-vllm#207")
def test_bug_nano_vllm_207_the_budget_counts_tokens_after_the_hits() -> None:
    """Tokens were counted before the hits were known, and more were planned than there were."""
    scheduler = make_scheduler(budget=9)
    add(scheduler, make_request("a", PROMPT[:9], max_tokens=1))
    step(scheduler)
    add(scheduler, make_request("b", PROMPT[:12]), make_request("c", 5))
    assert scheduler.schedule().num_scheduled_tokens == {"b": 4, "c": 5}


# ------------------------------------------------------------------ after the forward pass


def test_r36_the_update_skips_requests_that_ended_or_got_no_token() -> None:
    scheduler = make_scheduler(budget=8)
    add(scheduler, make_request("a", 3), make_request("b", 3), make_request("c", 9))
    output = scheduler.schedule()
    scheduler.finish_requests("a", S.FINISHED_ABORTED)
    outputs = scheduler.update_from_output(output, {"a": [1], "b": [2], "c": []})
    assert [(o.request_id, o.new_token_ids, o.finish_reason) for o in outputs] == [("b", [2], None)]
    scheduler.check_integrity()


@pytest.mark.parametrize(("sampled", "computed"), [([1, 2, 3], 6), ([1, 2], 5), ([9], 4)])
def test_r37_rejected_drafts_are_taken_back(sampled: list[int], computed: int) -> None:
    """Prompt 3 and one output; drafts 1 and 2. Of the 6 tokens computed, those after the first
    rejected draft do not count."""
    scheduler = make_scheduler()
    add(scheduler, make_request("a", 3))
    step(scheduler)
    scheduler.update_draft_token_ids({"a": [1, 2], "unknown": [3]})
    request = scheduler.requests["a"]
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 3}
    assert output.scheduled_spec_decode_tokens == {"a": [1, 2]}
    assert request.num_computed_tokens == 6 and request.spec_token_ids == []
    scheduler.update_from_output(output, {"a": sampled})
    assert request.num_computed_tokens == computed == request.num_tokens - 1
    scheduler.check_integrity()
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1}


def test_r37_late_rejections_leave_a_preempted_request_alone() -> None:
    """Planned ahead: the step with its drafts comes back when it has computed nothing."""
    scheduler = running_scheduler(make_request("a", 3))
    scheduler.update_draft_token_ids({"a": [1, 2]})
    output = scheduler.schedule()
    request = scheduler.requests["a"]
    scheduler._preempt(request)
    scheduler.update_from_output(output, {"a": [9]})
    assert request.num_computed_tokens == 0 and request.output_token_ids == [TOKEN, 9]
    scheduler.check_integrity()


@history("vllm#50342", "vllm#53812")
def test_bug_vllm_50342_a_full_request_wants_nothing_rather_than_less() -> None:
    """At the model's length the room was negative, and so was the number of tokens."""
    scheduler = make_scheduler(max_model_len=8)
    add(scheduler, make_request("a", 8))
    first = scheduler.schedule()
    assert scheduler.schedule().num_scheduled_tokens == {}
    finish_step(scheduler, first)
    assert not scheduler.has_unfinished_requests()


def test_r12_drafts_are_cut_to_the_budget() -> None:
    """Budget 2: the certain token and one of three drafts."""
    scheduler = make_scheduler(budget=2)
    add(scheduler, make_request("a", 2))
    step(scheduler)
    scheduler.update_draft_token_ids({"a": [1, 2, 3]})
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 2}
    assert output.scheduled_spec_decode_tokens == {"a": [1]}


@history("vllm#24446")
def test_r12_bug_vllm_24446_drafts_stop_before_the_models_length() -> None:
    """The limit was off by one in turn; drafts beyond it made negative counts.

    Length 8, prompt 5 and one output: positions 5 and 6 may be computed, 7 is only sampled.
    """
    scheduler = make_scheduler(max_model_len=8)
    request = make_request("a", 5, max_tokens=None)
    add(scheduler, request)
    step(scheduler)
    scheduler.update_draft_token_ids({"a": [1, 2, 3, 4]})
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 2}
    assert output.scheduled_spec_decode_tokens == {"a": [1]}
    scheduler.update_from_output(output, {"a": [1, 9]})
    assert request.num_tokens == 8 and request.status == S.FINISHED_LENGTH_CAPPED


def test_drafts_go_only_to_running_requests() -> None:
    scheduler = make_scheduler(seqs=1)
    add(scheduler, make_request("a", 2), make_request("b", 2))
    step(scheduler)
    scheduler.update_draft_token_ids({"a": [1], "b": [1]})
    assert scheduler.requests["a"].spec_token_ids == [1]
    assert scheduler.requests["b"].spec_token_ids == []


def test_drafts_for_a_prompt_in_chunks_are_dropped() -> None:
    """Budget 4, prompt 6: what was guessed after the first chunk follows no token of the
    sequence, so the second chunk is 2 tokens and verifies nothing."""
    scheduler = make_scheduler(budget=4)
    add(scheduler, make_request("a", 6))
    scheduler.update_from_output(scheduler.schedule(), {"a": []})
    scheduler.update_draft_token_ids({"a": [1, 2]})
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 2}
    assert output.scheduled_spec_decode_tokens == {}


@history("vllm#30618")
def test_s12_a_chunk_that_ends_one_token_before_its_prompt_gets_no_drafts() -> None:
    """Prompt 5, budget 4: nothing was sampled after token 4, so nothing can be guessed there."""
    scheduler = make_scheduler(budget=4)
    add(scheduler, make_request("a", 5))
    scheduler.update_from_output(scheduler.schedule(), {"a": []})
    scheduler.update_draft_token_ids({"a": [1, 2]})
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 1}
    assert output.scheduled_spec_decode_tokens == {}
    scheduler.update_from_output(output, {"a": [9]})
    scheduler.update_draft_token_ids({"a": [1, 2]})
    assert scheduler.schedule().scheduled_spec_decode_tokens == {"a": [1, 2]}


def test_s12_a_resumed_request_computes_its_output_in_chunks_without_drafts() -> None:
    """Prompt 3 and two of output, budget 4: after preemption its 5 tokens are a prompt again."""
    scheduler = make_scheduler(budget=4)
    request = make_request("a", 3)
    add(scheduler, request)
    step(scheduler)
    step(scheduler)
    assert scheduler.reset_prefix_cache() is False
    scheduler._preempt(request)
    assert scheduler.reset_prefix_cache()
    scheduler.update_from_output(scheduler.schedule(), {"a": []})
    assert (request.num_computed_tokens, request.num_tokens) == (4, 5)
    scheduler.update_draft_token_ids({"a": [1, 2]})
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1}


def test_r38_tokens_after_the_stop_are_dropped() -> None:
    scheduler = make_scheduler()
    request = make_request("a", 3, max_tokens=8, eos=2)
    add(scheduler, request)
    step(scheduler)
    scheduler.update_draft_token_ids({"a": [1, 2, 3]})
    output = scheduler.schedule()
    (result,) = scheduler.update_from_output(output, {"a": [1, 2, 3, 4]})
    assert result.new_token_ids == [1, 2] and result.finish_reason == "stop"
    assert request.output_token_ids == [TOKEN, 1, 2]


EOS, STOP = 2, 3
STOP_TABLE = [
    # sampled, max_tokens, min_tokens, status, stop_reason
    ([9], 4, 0, None, None),
    ([EOS], 4, 0, S.FINISHED_STOPPED, None),
    ([STOP], 4, 0, S.FINISHED_STOPPED, STOP),
    ([9, 9, 9, 9], 4, 0, S.FINISHED_LENGTH_CAPPED, None),
    ([9, 9, 9], 4, 0, None, None),
    ([9], 1, 0, S.FINISHED_LENGTH_CAPPED, None),
    ([9, 9], 2, 0, S.FINISHED_LENGTH_CAPPED, None),
    ([9, 9, 9, EOS], 4, 0, S.FINISHED_STOPPED, None),
    ([EOS], 4, 2, None, None),
    ([9, EOS], 4, 2, S.FINISHED_STOPPED, None),
    ([STOP, STOP], 4, 3, None, None),
    ([EOS, EOS, EOS, EOS], 4, 4, S.FINISHED_STOPPED, None),
    ([9] * 5, None, 0, S.FINISHED_LENGTH_CAPPED, None),
    ([9] * 4, None, 0, None, None),
]


@history("MinivLLM#6", "MinivLLM#44")
@pytest.mark.parametrize(("sampled", "max_tokens", "min_tokens", "status", "reason"), STOP_TABLE)
def test_r39_check_stop(
    sampled: list[int],
    max_tokens: int | None,
    min_tokens: int,
    status: RequestStatus | None,
    reason: int | None,
) -> None:
    """Prompt 3, model length 8. One engine never stopped, and then one token too early."""
    scheduler = make_scheduler(max_model_len=8)
    request = make_request(
        "a", 3, max_tokens, eos=EOS, min_tokens=min_tokens, stop_token_ids=[STOP]
    )
    for index, token in enumerate(sampled):
        request.append_output_token_ids(token)
        found = scheduler.check_stop(request)
        assert found == (status if index == len(sampled) - 1 else None)
    assert request.stop_reason == reason and request.status == S.WAITING


def test_r39_ignore_eos() -> None:
    scheduler = make_scheduler()
    request = make_request("a", 3, eos=EOS, ignore_eos=True, stop_token_ids=[STOP])
    request.append_output_token_ids(EOS)
    assert scheduler.check_stop(request) is None
    request.append_output_token_ids(STOP)
    assert scheduler.check_stop(request) == S.FINISHED_STOPPED


@history("vllm#26317", "vllm#51299")
def test_difference_vllm_51299_length_caps_come_before_min_tokens() -> None:
    """Upstream asks for min_tokens first of all, so a request with no room for them runs on with
    nothing to compute. Here the length ends it."""
    scheduler = make_scheduler(max_model_len=8)
    request = make_request("a", 6, max_tokens=None, min_tokens=10)
    add(scheduler, request)
    drain(scheduler, max_steps=10)
    assert request.num_tokens == 8 and request.status == S.FINISHED_LENGTH_CAPPED


def test_r40_exactly_max_model_len_tokens() -> None:
    """Length 8, prompt 6: 2 outputs."""
    scheduler = make_scheduler(max_model_len=8)
    request = make_request("a", 6, max_tokens=None)
    add(scheduler, request)
    drain(scheduler)
    assert request.num_output_tokens == 2 and request.status == S.FINISHED_LENGTH_CAPPED


def test_r41_a_stopped_request_is_removed_everywhere() -> None:
    scheduler = running_scheduler(
        make_request("a", 3, max_tokens=2), make_request("b", 3, max_tokens=5)
    )
    output = scheduler.schedule()
    outputs = finish_step(scheduler, output)
    assert [(o.request_id, o.finish_reason) for o in outputs] == [("a", "length"), ("b", None)]
    assert ids(scheduler.running) == ["b"] and list(scheduler.requests) == ["b"]
    assert scheduler.finished_req_ids == {"a"} and table(scheduler, "a") == []


def test_r41_a_request_may_stop_after_it_was_preempted() -> None:
    """Planned ahead: the step that samples its last token comes back when it waits again."""
    scheduler = make_scheduler()
    request = make_request("a", 3, max_tokens=1)
    add(scheduler, request)
    output = scheduler.schedule()
    scheduler._preempt(request)
    scheduler.update_from_output(output, {"a": [1]})
    assert request.status == S.FINISHED_LENGTH_CAPPED and len(scheduler.waiting) == 0
    scheduler.check_integrity()


def test_update_returns_outputs_in_the_order_of_the_plan() -> None:
    scheduler = running_scheduler(*(make_request(name, 2) for name in "cab"))
    outputs = finish_step(scheduler, scheduler.schedule())
    assert [o.request_id for o in outputs] == ["c", "a", "b"]


# ------------------------------------------------------------------ where upstream hangs


@history("vllm#39734", "nano-vllm#274", "mini-sglang: over-long request dropped")
def test_difference_vllm_39734_a_prompt_larger_than_the_pool_is_capped() -> None:
    """Upstream lets it wait for ever, and everyone behind it. 2 blocks of 4, prompt of 9."""
    scheduler = make_scheduler(blocks=2)
    big, small = make_request("big", 9), make_request("small", 3, max_tokens=1)
    add(scheduler, big, small)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"small": 3} and output.finished_req_ids == {"big"}
    assert big.status == S.FINISHED_LENGTH_CAPPED and big.stop_reason == "kv_capacity"
    outputs = finish_step(scheduler, output)
    assert [(o.request_id, o.finish_reason, o.stop_reason) for o in outputs] == [
        ("small", "length", None),
        ("big", "length", "kv_capacity"),
    ]
    assert drain(scheduler) == 1


def test_a_prompt_that_just_fits_the_pool_is_not_capped() -> None:
    scheduler = make_scheduler(blocks=2)
    request = make_request("a", 8, max_tokens=1)
    add(scheduler, request)
    drain(scheduler)
    assert request.stop_reason is None and request.num_output_tokens == 1


@history("vllm#35541", "MinivLLM#94")
def test_difference_vllm_35541_a_decode_that_outgrows_the_pool_is_capped() -> None:
    """Upstream preempts it although no request needs its blocks, and never admits it again.

    2 blocks of 4, prompt of 6: tokens 7 and 8 fit, the ninth was sampled and has no slot.
    """
    scheduler = make_scheduler(blocks=2)
    request = make_request("a", 6, max_tokens=20)
    add(scheduler, request)
    drain(scheduler, max_steps=10)
    assert request.status == S.FINISHED_LENGTH_CAPPED and request.stop_reason == "kv_capacity"
    assert request.num_output_tokens == 3 and request.num_preemptions == 0
    assert scheduler.kv_cache_manager.num_free_blocks == 2


def test_difference_a_chunked_prompt_admitted_without_reservation_is_capped() -> None:
    scheduler = make_scheduler(blocks=2, budget=4, reserve=False)
    request = make_request("a", 10)
    add(scheduler, request)
    assert [step(scheduler).num_scheduled_tokens for _ in range(3)] == [{"a": 4}, {"a": 4}, {}]
    assert request.stop_reason == "kv_capacity" and request.output_token_ids == []


def test_difference_a_request_that_can_never_fit_preempts_no_other() -> None:
    """3 blocks of 4. "a" grows past 12 tokens beside "b": "b" has gone before that, but at the
    end "a" is capped and no request is preempted for it, and "b" comes back."""
    scheduler = make_scheduler(blocks=3)
    a, b = make_request("a", 7, max_tokens=20), make_request("b", 3, max_tokens=6)
    add(scheduler, a, b)
    drain(scheduler)
    assert a.stop_reason == "kv_capacity" and a.num_tokens == 13
    assert b.status == S.FINISHED_LENGTH_CAPPED and b.stop_reason is None
    assert b.num_output_tokens == 6 and b.num_preemptions == 1


def test_difference_lookahead_counts_towards_the_capacity() -> None:
    """2 blocks of 4 and 2 slots of lookahead: 7 tokens need 9 slots."""
    scheduler = make_scheduler(blocks=2, lookahead=2)
    request = make_request("a", 5, max_tokens=20)
    add(scheduler, request)
    drain(scheduler, max_steps=10)
    assert request.stop_reason == "kv_capacity" and request.num_tokens == 7


def test_difference_the_models_length_bounds_what_must_fit() -> None:
    """2 blocks of 4, length 8, lookahead 2: 7 tokens need 8 slots, not 9, and fit the pool.
    "a" has computed 4 of them when "b" holds the other block: "b" goes, "a" is not capped."""
    scheduler = make_scheduler(blocks=2, lookahead=2, max_model_len=8, threshold=4, reserve=False)
    a, b = make_request("a", 7, max_tokens=None), make_request("b", 3, max_tokens=2)
    add(scheduler, a, b)
    step(scheduler)
    assert step(scheduler).preempted_req_ids == ["b"]
    drain(scheduler, max_steps=10)
    assert a.num_tokens == 8 and a.stop_reason is None
    assert b.num_output_tokens == 2 and b.stop_reason is None


@history("nano-vllm#274", "vllm#30320")
def test_difference_a_prompt_over_the_budget_without_chunking_is_an_error() -> None:
    """Upstream schedules nothing, step after step."""
    scheduler = make_scheduler(budget=8, chunked=False)
    add(scheduler, make_request("a", 9))
    with pytest.raises(NoProgressError, match=r"'a'.* max_num_batched_tokens is 8 .* is off"):
        scheduler.schedule()
    scheduler.check_integrity()
    scheduler.finish_requests("a", S.FINISHED_ABORTED)
    assert scheduler.schedule().finished_req_ids == {"a"}


def test_difference_a_stall_behind_running_requests_is_no_error_yet() -> None:
    scheduler = running_scheduler(make_request("a", 2, max_tokens=2), budget=8, chunked=False)
    add(scheduler, make_request("b", 9))
    step(scheduler)
    with pytest.raises(NoProgressError):
        scheduler.schedule()


def test_difference_a_stall_is_seen_in_the_skipped_queue_too() -> None:
    """Its grammar is there, but its prompt is over the budget, with chunking off."""
    ready = Gate()
    scheduler = make_scheduler(budget=8, chunked=False, extensions=[ready])
    request = make_request("a", 9)
    request.transition_to(S.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)
    add(scheduler, request)
    assert step(scheduler).num_scheduled_tokens == {}, "waiting for others is no stall"
    ready.ready.add("a")
    with pytest.raises(NoProgressError, match=r"'a'.*can never be admitted"):
        scheduler.schedule()


def test_difference_a_running_request_without_room_is_an_error() -> None:
    """Length 8, prompt 8 in chunks of 5: position 7 is never computed for a running request."""
    scheduler = make_scheduler(budget=5, max_model_len=8)
    add(scheduler, make_request("a", 8))
    assert step(scheduler).num_scheduled_tokens == {"a": 5}
    assert step(scheduler).num_scheduled_tokens == {"a": 2}
    with pytest.raises(NoProgressError, match=r"'a'.*max_model_len is 8"):
        scheduler.schedule()


def test_an_idle_scheduler_makes_empty_steps() -> None:
    output = make_scheduler().schedule()
    assert output.total_num_scheduled_tokens == 0 and output.num_scheduled_tokens == {}
    assert output.blocks_to_swap_out == output.blocks_to_swap_in == output.blocks_to_copy == []


# ------------------------------------------------------------------ failed forward passes


def test_a_failed_step_takes_its_blocks_out_of_the_prefix_cache() -> None:
    """Budget 6: "a" computes 6 of its 9 tokens well, and its last 3 badly, together with "b".
    Block 0 of "a" stays findable; block 1 was half old, half new."""
    scheduler = make_scheduler(budget=6)
    a, b = make_request("a", PROMPT[:9]), make_request("b", 3)
    add(scheduler, a, b)
    step(scheduler)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 3, "b": 3}
    results = scheduler.fail_requests(output, {"a": "NaN", "b": "NaN", "gone": "NaN"})
    assert [(r.request_id, r.finish_reason, str(r.failure)) for r in results] == [
        ("a", "error", "NaN"),
        ("b", "error", "NaN"),
    ]
    assert a.status == b.status == S.FINISHED_ERROR
    scheduler.check_integrity()
    again = make_request("again", PROMPT[:9])
    add(scheduler, again)
    output = step(scheduler)
    assert output.num_scheduled_tokens == {"again": 5} and again.num_cached_tokens == 4
    assert output.finished_req_ids == {"a", "b"}


def test_a_failed_step_spares_requests_outside_it() -> None:
    scheduler = make_scheduler(seqs=1)
    add(scheduler, make_request("a", 3), make_request("b", 3))
    output = scheduler.schedule()
    assert len(scheduler.fail_requests(output, {"a": "boom"})) == 1
    assert step(scheduler).num_scheduled_tokens == {"b": 3}


def test_a_failed_request_leaves_requests_that_share_its_blocks_running() -> None:
    """Equal prompts in one step; only "a" fails. "b" goes on; its blocks are not findable now."""
    scheduler = make_scheduler()
    b = make_request("b", PROMPT[:9], max_tokens=3)
    add(scheduler, make_request("a", PROMPT[:9]), b)
    output = scheduler.schedule()
    scheduler.fail_requests(output, {"a": "NaN"})
    finish_step(scheduler, output)
    assert table(scheduler, "b") == [1, 2, 4]
    assert scheduler.kv_cache_manager.block_pool.cached_blocks == {}
    drain(scheduler)
    assert b.num_output_tokens == 3


# ------------------------------------------------------------------ extensions


class Gate(SchedulerExtension):
    """Admits, and declares ready, whom it was told to; records what it hears."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.refused: set[str] = set()
        self.freed: list[tuple[str, RequestStatus]] = []
        self.seen: list[list[str]] = []

    def is_ready(self, request: Request) -> bool:
        return request.request_id in self.ready

    def may_admit(self, request: Request, running: Sequence[Request]) -> bool:
        self.seen.append(ids(running))
        return request.request_id not in self.refused

    def request_freed(self, request: Request) -> None:
        self.freed.append((request.request_id, request.status))

    def batch_inputs(self, output: SchedulerOutput) -> dict[str, Any]:
        return {"tokens": sum(output.num_scheduled_tokens.values())}


def test_r08_a_blocked_request_waits_beside_the_line() -> None:
    gate = Gate()
    scheduler = make_scheduler(extensions=[gate])
    blocked, other = make_request("a", 3), make_request("b", 3)
    blocked.transition_to(S.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)
    add(scheduler, blocked, other)
    assert ids(scheduler.skipped_waiting) == ["a"] and ids(scheduler.waiting) == ["b"]
    assert step(scheduler).num_scheduled_tokens == {"b": 3}
    assert ids(scheduler.skipped_waiting) == ["a"]
    assert blocked.status == S.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    gate.ready.add("a")
    output = step(scheduler)
    assert output.num_scheduled_tokens == {"b": 1, "a": 3}
    assert output.scheduled_new_reqs[0].req_id == "a"
    assert not scheduler.skipped_waiting


def test_r08_a_blocked_request_stays_without_an_extension_that_unblocks_it() -> None:
    scheduler = make_scheduler(extensions=[SchedulerExtension()])
    request = make_request("a", 3)
    request.transition_to(S.WAITING_FOR_REMOTE_KVS)
    add(scheduler, request)
    assert step(scheduler).num_scheduled_tokens == {}
    assert scheduler.has_requests()


def test_r08_skipped_requests_are_asked_first_under_fcfs() -> None:
    gate = Gate()
    gate.refused = {"a"}
    scheduler = make_scheduler(seqs=1, extensions=[gate])
    add(scheduler, make_request("a", 3))
    step(scheduler)
    add(scheduler, make_request("b", 3))
    gate.refused = set()
    assert step(scheduler).num_scheduled_tokens == {"a": 3}


@pytest.mark.parametrize(("priority", "first"), [(0, "b"), (1, "a"), (2, "a")])
def test_r08_under_priority_the_smaller_head_has_its_turn(priority: int, first: str) -> None:
    """ "a" (priority 1) was skipped; "b" goes before it only if it is more urgent."""
    gate = Gate()
    gate.refused = {"a"}
    scheduler = make_scheduler(seqs=1, policy="priority", extensions=[gate])
    add(scheduler, make_request("a", 3, priority=1))
    step(scheduler)
    add(scheduler, make_request("b", 3, priority=priority, arrival=1.0))
    gate.refused = set()
    assert step(scheduler).num_scheduled_tokens == {first: 3}


def test_r09_skipped_requests_keep_their_order() -> None:
    """a, b, d are held back while c runs; later ones stand behind them."""
    gate = Gate()
    gate.refused = {"a", "b", "d"}
    scheduler = make_scheduler(extensions=[gate])
    add(scheduler, *(make_request(name, 2) for name in "abcd"))
    assert step(scheduler).num_scheduled_tokens == {"c": 2}
    assert ids(scheduler.skipped_waiting) == ["a", "b", "d"]
    gate.refused = {"b", "d", "e"}
    add(scheduler, make_request("e", 2))
    assert step(scheduler).num_scheduled_tokens == {"c": 1, "a": 2}
    assert ids(scheduler.skipped_waiting) == ["b", "d", "e"]
    assert len(scheduler.waiting) == 0


def test_r09_those_skipped_in_this_step_stand_before_older_ones() -> None:
    """Room for one: "a" is skipped again, "b" is admitted, "c" was not even asked."""
    gate = Gate()
    gate.refused = {"a", "b", "c"}
    scheduler = make_scheduler(seqs=1, extensions=[gate])
    add(scheduler, *(make_request(name, 2) for name in "abc"))
    step(scheduler)
    gate.refused = {"a"}
    assert step(scheduler).num_scheduled_tokens == {"b": 2}
    assert ids(scheduler.skipped_waiting) == ["a", "c"]


def test_the_gate_is_given_the_running_requests() -> None:
    gate = Gate()
    scheduler = make_scheduler(extensions=[gate])
    add(scheduler, make_request("a", 2), make_request("b", 2))
    scheduler.schedule()
    assert gate.seen == [[], ["a"]]


def test_limit_tokens_cuts_chunks_and_can_hold_back() -> None:
    limit = Limit("a", 3)
    scheduler = make_scheduler(extensions=[limit])
    add(scheduler, make_request("a", 7))
    assert [step(scheduler).num_scheduled_tokens["a"] for _ in range(3)] == [3, 3, 1]
    assert limit.asked == [("a", 0, 7), ("a", 3, 4), ("a", 6, 1)]
    limit.tokens = 0
    limit.request_id = "b"
    add(scheduler, make_request("b", 2), make_request("c", 2))
    assert step(scheduler).num_scheduled_tokens == {"a": 1}, "no request overtakes"
    assert ids(scheduler.waiting) == ["b", "c"]


def test_batch_inputs_and_freed_requests() -> None:
    gate = Gate()
    scheduler = make_scheduler(extensions=[gate])
    add(scheduler, make_request("a", 3, max_tokens=1), make_request("b", 2))
    output = step(scheduler)
    assert output.extra == {"tokens": 5}
    scheduler.finish_requests("b", S.FINISHED_ABORTED)
    assert gate.freed == [("a", S.FINISHED_LENGTH_CAPPED), ("b", S.FINISHED_ABORTED)]


# ------------------------------------------------------------------ check_integrity


@pytest.mark.parametrize("damage", ["lost", "twice", "status", "slots", "computed", "holds"])
def test_check_integrity_sees_damage(damage: str) -> None:
    scheduler = running_scheduler(make_request("a", 3), make_request("b", 3), seqs=2)
    waiting = make_request("w", 3)
    add(scheduler, waiting)
    scheduler.check_integrity()
    a = scheduler.requests["a"]
    if damage == "lost":
        scheduler.running.remove(a)
    elif damage == "twice":
        scheduler.waiting.add_request(a)
    elif damage == "status":
        a.status = S.PREEMPTED
    elif damage == "slots":
        a.append_output_token_ids([1] * 8)
        a.num_computed_tokens = 9
    elif damage == "computed":
        a.num_computed_tokens = a.num_tokens + 1
    else:
        scheduler.kv_cache_manager.allocate_slots(waiting, 3)
    with pytest.raises(AssertionError):
        scheduler.check_integrity()
