"""vLLM V0's scheduler, decision by decision: the worked examples first, with their sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.policies.budget import SchedulingBudget
from mini_vllm.policies.v0_plan import PreemptionMode, V0Options, V0Plan
from mini_vllm.policies.vllm_v0 import (
    VllmV0,
    VllmV0Chunked,
    order_finishing_prefills_first,
)
from mini_vllm.request import RequestStatus
from tests.engine.core.build import (
    add,
    drain,
    finish_step,
    ids,
    make_request,
    step,
    step_until,
    table,
)

SWAP, RECOMPUTE = PreemptionMode.SWAP, PreemptionMode.RECOMPUTE


def make_v0(
    cls: type[VllmV0] = VllmV0,
    blocks: int = 12,
    block_size: int = 4,
    cpu_blocks: int = 12,
    caching: bool = False,
    budget: int = 64,
    seqs: int = 8,
    max_model_len: int = 64,
    policy: str = "fcfs",
    lookahead: int = 0,
    **options: Any,
) -> VllmV0:
    """A scheduler with ``blocks`` usable device blocks and no watermark."""
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        max_model_len=max_model_len,
        policy=policy,  # type: ignore[arg-type]
        num_lookahead_tokens=lookahead,
    )
    cache = CacheConfig(block_size, blocks + 1, caching, num_cpu_blocks=cpu_blocks)
    return cls(config, cache, (), b"root", V0Options(**({"watermark": 0.0} | options)))


def swapped(scheduler: VllmV0) -> list[list[str]]:
    return [ids(group) for group in scheduler.swapped]


# ------------------------------------------------------------------ the worked examples


def test_example_high_medium_low_become_1_3_5() -> None:
    """A waits, B and C run, and there is no block for A: C goes, and A takes its place.

    The example calls the priorities High (5), Medium (3), Low (1). In vLLM the smaller number
    goes first, so A, B and C have 1, 3 and 5 here: with 5, 3 and 1 it would be A that waits.
    """
    scheduler = make_v0(blocks=4, policy="priority")
    add(scheduler, make_request("B", 6, priority=3), make_request("C", 6, priority=5))
    step(scheduler)
    add(scheduler, make_request("A", 6, priority=1, arrival=9.0))
    output = step(scheduler)
    assert output.preempted_req_ids == ["C"] and output.num_scheduled_tokens == {"B": 1}
    assert ids(scheduler.waiting) == ["A", "C"]
    assert step(scheduler).num_scheduled_tokens == {"A": 6}
    assert ids(scheduler.running) == ["B", "A"] and ids(scheduler.waiting) == ["C"]


def test_the_numbers_5_3_1_of_the_example_do_the_opposite() -> None:
    scheduler = make_v0(blocks=6, policy="priority")
    add(scheduler, make_request("B", 6, priority=3), make_request("C", 6, priority=1))
    step(scheduler)
    add(scheduler, make_request("A", 6, priority=5))
    assert step(scheduler).num_scheduled_tokens == {"A": 6}
    output = step(scheduler)
    assert output.preempted_req_ids == ["A"], "there is no block to spare, and A is the last"
    assert output.num_scheduled_tokens == {"C": 1, "B": 1}


@pytest.mark.parametrize(("policy", "first"), [("fcfs", "C"), ("priority", "A")])
def test_example_default_a_waits_b_runs_c_is_swapped(policy: str, first: str) -> None:
    """The example lets the prompt A start first. V0 does not: while C is swapped out, no prompt
    starts, so B goes on and C comes back before. Unless A is more urgent than C: then A is first.
    """
    scheduler = make_v0(blocks=4, policy=policy, preemption_mode=SWAP)
    add(scheduler, make_request("B", 7, 6, priority=2), make_request("C", 7, priority=3))
    plan = step_until(scheduler, lambda plan: plan.blocks_to_swap_out)
    assert plan.num_scheduled_tokens == {"B": 1} and swapped(scheduler) == [["C"]]
    add(scheduler, make_request("A", 4, priority=1))
    plan = step_until(scheduler, lambda plan: not plan.num_scheduled_tokens.keys() <= {"B"})
    assert first in plan.num_scheduled_tokens


def test_example_prefills_x_fits_y_is_ignored_z_is_chunked() -> None:
    """X has 500 tokens, Y 10,000, Z 3,000; the model's length is 4,096, a step's budget 2,048."""
    scheduler = make_v0(VllmV0Chunked, blocks=400, block_size=16, budget=2048, max_model_len=4096)
    requests = [make_request("X", 500), make_request("Y", 10_000), make_request("Z", 3_000)]
    add(scheduler, *requests)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"X": 500, "Z": 1548}
    outputs = finish_step(scheduler, output)
    assert [(o.request_id, o.stop_reason) for o in outputs] == [("X", None), ("Y", "prompt_limit")]
    assert requests[1].status == RequestStatus.FINISHED_IGNORED
    assert step(scheduler).num_scheduled_tokens == {"X": 1, "Z": 1452}


def test_example_chunks_y_decodes_first_then_x_then_z() -> None:
    """Y decodes at 500 tokens; the prompts X (3,000) and Z (10,000) share what is left."""
    scheduler = make_v0(
        VllmV0Chunked, blocks=1200, block_size=16, budget=2048, max_model_len=16_384
    )
    add(scheduler, make_request("Y", 499, max_tokens=20))
    step(scheduler)
    add(scheduler, make_request("X", 3_000), make_request("Z", 10_000))
    plans = [step(scheduler).num_scheduled_tokens for _ in range(4)]
    assert plans[0] == {"Y": 1, "X": 2047}
    assert plans[1] == {"Y": 1, "X": 953, "Z": 1094}
    assert plans[2] == plans[3] == {"Y": 1, "X": 1, "Z": 2046}


def test_example_finishing_prefills_come_first() -> None:
    """A misses 5 tokens and gets 5, B 10 and 5, C 2 and 2: [B, A, C] becomes [A, C, B]."""
    a, b, c = make_request("A", 5), make_request("B", 10), make_request("C", 2)
    ordered = order_finishing_prefills_first([b, a, c], {"A": 5, "B": 5, "C": 2})
    assert ids(ordered) == ["A", "C", "B"]


def test_finishing_prefills_make_tokens_before_the_rest_of_others() -> None:
    """The order of ``running`` after a step is the order of service in the next."""
    scheduler = make_v0(VllmV0Chunked, budget=12, blocks=20, max_model_len=64)
    add(scheduler, make_request("B", 20))
    step(scheduler)
    assert step(scheduler).num_scheduled_tokens == {"B": 8}
    add(scheduler, make_request("A", 5), make_request("D", 20), make_request("C", 2))
    assert step(scheduler).num_scheduled_tokens == {"B": 1, "A": 5, "D": 6}
    assert ids(scheduler.running) == ["B", "A", "D"]
    assert step(scheduler).num_scheduled_tokens == {"B": 1, "A": 1, "D": 10}


@pytest.mark.parametrize(("held", "lookahead", "fits"), [(50, 10, True), (95, 10, False)])
def test_example_lookahead_needs_room_too(held: int, lookahead: int, fits: bool) -> None:
    """100 slots: 50 + 10 are within them, 95 + 10 are not."""
    scheduler = make_v0(
        blocks=10, block_size=10, budget=200, max_model_len=200, lookahead=lookahead
    )
    request = make_request("r", held - 1, max_tokens=100)
    add(scheduler, request)
    step(scheduler)  # the prompt, and the token that makes them `held`
    assert request.num_tokens == held
    assert scheduler._can_append_slots([request]) == fits
    step(scheduler)
    assert request.is_finished == (not fits)


@pytest.mark.parametrize(
    ("left", "caching", "chunk"),
    [(100, True, 96), (112, True, 100), (50, False, 50), (50, True, 48)],
)
def test_example_chunks_are_whole_blocks_with_prefix_caching(
    left: int, caching: bool, chunk: int
) -> None:
    """100 tokens are wanted: all of them, 50 of them, or what whole blocks of 16 allow. A budget
    of 100 is 6 blocks to V0, so even a prompt that would fit is cut."""
    scheduler = make_v0(VllmV0Chunked, block_size=16, budget=left, caching=caching)
    assert scheduler._num_tokens_now(100, left) == chunk
    default = make_v0(block_size=16, budget=left, caching=caching)
    assert default._num_tokens_now(100, left) == (100 if left >= 100 else 0)


def test_the_budget_takes_back_what_it_charged() -> None:
    budget = SchedulingBudget(token_budget=10, max_num_seqs=2)
    budget.add_seq("a")
    budget.add_seq("a")
    budget.add_tokens("a", 6, num_cached_tokens=16)
    assert budget.remaining_token_budget() == 4 and budget.num_cached_tokens == 16
    assert budget.can_schedule(4, 1)
    assert not budget.can_schedule(5, 1) and not budget.can_schedule(1, 2)
    budget.remove("a")
    budget.remove("unknown")
    assert (budget.num_batched_tokens, budget.num_cached_tokens, budget.num_curr_seqs) == (0, 0, 0)


# ------------------------------------------------------------------ the default policy


def test_prompts_stop_all_decodes() -> None:
    scheduler = make_v0()
    add(scheduler, make_request("a", 6))
    step(scheduler)
    assert step(scheduler).num_scheduled_tokens == {"a": 1}
    add(scheduler, make_request("b", 6), make_request("c", 6))
    assert step(scheduler).num_scheduled_tokens == {"b": 6, "c": 6}
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 1, "c": 1}


def fill_pool(scheduler: VllmV0) -> None:
    """Two requests of 7 tokens in 4 blocks of 4. Both have room for another token, but V0 asks for
    a free block for each: it counts the block that is written to as if it had to be copied."""
    add(scheduler, make_request("a", 7, max_tokens=8), make_request("b", 7, max_tokens=8))
    step(scheduler)


def test_a_swapped_request_keeps_its_tokens_and_blocks_new_prompts() -> None:
    scheduler = make_v0(blocks=4, preemption_mode=SWAP)
    fill_pool(scheduler)
    before = table(scheduler, "b")
    add(scheduler, make_request("c", 3, max_tokens=2))
    output = step(scheduler)
    assert output.preempted_req_ids == ["b"] and output.num_scheduled_tokens == {"a": 1}
    assert output.blocks_to_swap_out == [(before[0], 0), (before[1], 1)]
    assert swapped(scheduler) == [["b"]] and ids(scheduler.waiting) == ["c"]
    b = scheduler.requests["b"]
    assert b.status == RequestStatus.PREEMPTED and b.num_computed_tokens == 7
    for _ in range(5):
        assert step(scheduler).num_scheduled_tokens == {"a": 1}, "c fits, but b is swapped out"
    assert step(scheduler).preempted_req_ids == ["a"], "its own last block counts as needed anew"
    output = step(scheduler)
    assert output.num_scheduled_tokens == {"b": 1}
    assert output.scheduled_cached_reqs.num_computed_tokens == [7]
    assert output.scheduled_cached_reqs.resumed_req_ids == {"b"}
    assert output.blocks_to_swap_in == [
        (0, table(scheduler, "b")[0]),
        (1, table(scheduler, "b")[1]),
    ]
    output = step_until(scheduler, lambda plan: "c" in plan.num_scheduled_tokens)
    assert output.num_scheduled_tokens == {"c": 3} and not scheduler.swapped


def test_a_lone_request_is_computed_again_by_default() -> None:
    scheduler = make_v0(blocks=4)
    fill_pool(scheduler)
    output = step(scheduler)
    assert output.preempted_req_ids == ["b"] and output.blocks_to_swap_out == []
    assert ids(scheduler.waiting) == ["b"] and not scheduler.swapped
    assert scheduler.requests["b"].num_computed_tokens == 0


def test_without_room_on_the_host_a_request_is_computed_again() -> None:
    """V0 gave up here: "Aborted due to the lack of CPU swap space"."""
    scheduler = make_v0(blocks=4, cpu_blocks=1, preemption_mode=SWAP)
    fill_pool(scheduler)
    assert step(scheduler).preempted_req_ids == ["b"]
    assert ids(scheduler.waiting) == ["b"] and not scheduler.swapped


def test_swapped_requests_come_back_in_order_and_not_in_a_step_that_preempts() -> None:
    scheduler = make_v0(blocks=6, preemption_mode=SWAP)
    add(scheduler, *[make_request(name, 7, max_tokens=9) for name in "abc"])
    preempted = [step(scheduler).preempted_req_ids for _ in range(4)]
    assert preempted == [[], ["c"], [], ["b"]] and swapped(scheduler) == [["c"], ["b"]]
    output = step(scheduler)
    assert output.blocks_to_swap_in and output.preempted_req_ids == []
    assert output.scheduled_cached_reqs.resumed_req_ids == {"c"}


def test_the_queue_of_preempted_requests_is_the_order_of_their_age() -> None:
    scheduler = make_v0(blocks=6)
    add(scheduler, *[make_request(name, 8, max_tokens=20) for name in "abc"])
    step(scheduler)
    output = step(scheduler)
    assert output.preempted_req_ids == ["c"] and output.num_scheduled_tokens == {"a": 1, "b": 1}
    assert step(scheduler).preempted_req_ids == ["b"]
    assert ids(scheduler.waiting) == ["b", "c"]


def test_two_that_are_dropped_in_one_step_wait_in_the_order_of_their_age() -> None:
    """a's token and seven lookahead slots touch three blocks: one is free, c has one, and b."""
    scheduler = make_v0(blocks=4, lookahead=7)
    add(scheduler, *[make_request(name, 3) for name in "abc"])
    step(scheduler)
    assert step(scheduler).preempted_req_ids == ["c", "b"]
    assert ids(scheduler.waiting) == ["b", "c"]


def test_a_request_without_tokens_is_served_first_in_the_next_step() -> None:
    """A budget of 2 for three requests: none is left out twice in a row."""
    scheduler = make_v0(budget=2)
    add(scheduler, *[make_request(name, 2) for name in "abc"])
    served = [list(step(scheduler).num_scheduled_tokens) for _ in range(6)]
    assert served == [["a"], ["b"], ["c"], ["a", "b"], ["c", "a"], ["b", "c"]]


def test_no_prompt_starts_before_the_delay_has_passed() -> None:
    """The last prompt step took 2 s and the factor is 0.5: a prompt has to wait for 1 s."""
    scheduler = make_v0(delay_factor=0.5)
    now = 0.0
    scheduler.clock = lambda: now
    add(scheduler, make_request("a", 4, arrival=0.0))
    assert step(scheduler).num_scheduled_tokens == {"a": 4}, "no request runs: no delay"
    now = 2.0
    add(scheduler, make_request("b", 4, arrival=1.5))
    assert step(scheduler).num_scheduled_tokens == {"a": 1}
    now = 2.4
    add(scheduler, make_request("c", 4, arrival=2.4))
    assert step(scheduler).num_scheduled_tokens == {"a": 1}
    now = 2.6
    assert step(scheduler).num_scheduled_tokens == {"b": 4}, "c has not waited long enough"
    now = 2.8
    assert step(scheduler).num_scheduled_tokens == {"c": 4}, "b's step took 0.2 s only"


def test_the_watermark_is_kept_at_admission_only() -> None:
    scheduler = make_v0(blocks=10, watermark=0.2)
    add(scheduler, make_request("a", 28), make_request("b", 8))
    assert step(scheduler).num_scheduled_tokens == {"a": 28}, "3 are free, 2 are to be kept"
    idle = make_v0(blocks=10, watermark=0.2)
    add(idle, make_request("a", 39))
    assert step(idle).num_scheduled_tokens == {"a": 39}, "no running request may need them"


def test_a_prompt_beyond_the_pool_is_ignored_and_the_next_one_runs() -> None:
    scheduler = make_v0(blocks=4)
    big = make_request("big", 17)
    add(scheduler, big, make_request("a", 4))
    assert step(scheduler).num_scheduled_tokens == {"a": 4}
    assert big.status == RequestStatus.FINISHED_IGNORED and big.stop_reason == "kv_capacity"


def test_a_resumed_request_beyond_the_budget_keeps_its_output() -> None:
    scheduler = make_v0(budget=14, blocks=4)
    fill_pool(scheduler)
    b = scheduler.requests["b"]
    b.append_output_token_ids([1] * 7)  # as if it had been running for longer
    assert step(scheduler).preempted_req_ids == ["b"]
    step(scheduler)
    assert b.status == RequestStatus.FINISHED_LENGTH_CAPPED and b.stop_reason == "prompt_limit"
    assert b.num_output_tokens == 8


def test_cached_tokens_are_counted_but_cost_nothing() -> None:
    """The lookup finds whole blocks. A prompt that is cached whole computes its last block again;
    V0 computed its last token only, into a block that others may hold."""
    scheduler = make_v0(caching=True, budget=20, max_model_len=20)
    add(scheduler, make_request("a", list(range(16)), max_tokens=1))
    step(scheduler)
    add(scheduler, make_request("c", 16, max_tokens=1))
    b = make_request("b", list(range(16)), max_tokens=1)
    add(scheduler, b)
    assert step(scheduler).num_scheduled_tokens == {"c": 16, "b": 4}
    assert b.num_cached_tokens == 12


def test_what_a_step_computes_is_found_from_the_next_step_on() -> None:
    scheduler = make_v0(caching=True, budget=64)
    add(scheduler, *[make_request(name, list(range(9)), max_tokens=4) for name in "ab"])
    assert step(scheduler).num_scheduled_tokens == {"a": 9, "b": 9}
    add(scheduler, make_request("c", list(range(9)), max_tokens=4))
    assert step(scheduler).num_scheduled_tokens == {"c": 1}


# ------------------------------------------------------------------ priorities


def test_an_urgent_request_takes_as_many_places_as_it_needs_and_no_more() -> None:
    scheduler = make_v0(blocks=8, policy="priority")
    add(scheduler, *[make_request(f"r{i}", 6, priority=i, arrival=float(i)) for i in (1, 4, 3, 2)])
    step(scheduler)
    add(scheduler, make_request("urgent", 14, priority=0, arrival=9.0))
    assert step(scheduler).preempted_req_ids == ["r4", "r3"]
    assert step(scheduler).num_scheduled_tokens == {"urgent": 14}


def test_no_preemption_for_equal_priority_or_without_need() -> None:
    scheduler = make_v0(blocks=6, seqs=2, policy="priority")
    add(scheduler, *[make_request(name, 6, priority=2) for name in "ab"])
    step(scheduler)
    add(scheduler, make_request("c", 6, priority=2))
    assert step(scheduler).preempted_req_ids == []
    roomy = make_v0(blocks=8, policy="priority")
    add(roomy, *[make_request(name, 6, priority=2) for name in "ab"])
    step(roomy)
    add(roomy, make_request("c", 6, priority=1))
    output = step(roomy)
    assert output.num_scheduled_tokens == {"c": 6} and output.preempted_req_ids == []


def test_an_urgent_prompt_starts_although_its_victim_is_swapped_out() -> None:
    """In V0 the victim's copies were lost, and it went to wait with the status "swapped". If it
    merely stood in the swapped queue, it would block the prompt that it made room for."""
    scheduler = make_v0(blocks=4, policy="priority", preemption_mode=SWAP)
    add(scheduler, make_request("low", 6, priority=5), make_request("mid", 6, priority=3))
    step(scheduler)
    add(scheduler, make_request("top", 6, priority=1))
    output = step(scheduler)
    assert output.preempted_req_ids == ["low"] and len(output.blocks_to_swap_out) == 2
    assert step(scheduler).num_scheduled_tokens == {"top": 6}
    assert swapped(scheduler) == [["low"]]


def test_a_row_is_taken_as_well_as_blocks() -> None:
    scheduler = make_v0(seqs=2, policy="priority")
    add(scheduler, *[make_request(name, 6, priority=2, arrival=i) for i, name in enumerate("ab")])
    step(scheduler)
    add(scheduler, make_request("top", 6, priority=1))
    assert step(scheduler).preempted_req_ids == ["b"]


# ------------------------------------------------------------------ the chunked policy


def test_the_chunked_policy_decodes_while_a_prompt_is_computed() -> None:
    scheduler = make_v0(VllmV0Chunked, budget=8, blocks=20, caching=True)
    add(scheduler, make_request("a", 6))
    step(scheduler)
    add(scheduler, make_request("b", 20))
    plans = [step(scheduler).num_scheduled_tokens for _ in range(5)]
    assert plans[:4] == [{"a": 1, "b": 4}] * 4
    assert plans[4] == {"a": 1, "b": 4}
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 1}


def test_a_cut_prompt_holds_all_of_its_blocks() -> None:
    scheduler = make_v0(VllmV0Chunked, budget=8, blocks=12)
    add(scheduler, make_request("a", 30))
    step(scheduler)
    assert len(table(scheduler, "a")) == 8
    assert step(scheduler).new_block_ids == {}


def test_a_budget_below_a_block_still_makes_progress() -> None:
    """V0 refused budgets that are no multiple of the block size."""
    scheduler = make_v0(VllmV0Chunked, budget=3, block_size=4, caching=True)
    add(scheduler, make_request("a", 7, max_tokens=2))
    assert [step(scheduler).num_scheduled_tokens["a"] for _ in range(4)] == [3, 3, 1, 1]


def test_a_prompt_may_start_in_a_step_that_preempts_another() -> None:
    """As in V0, whose preempted requests go back to the queue at the end of the step."""
    scheduler = make_v0(VllmV0Chunked, blocks=4)
    fill_pool(scheduler)
    add(scheduler, make_request("c", 3))
    output = step(scheduler)
    assert output.preempted_req_ids == ["b"] and output.num_scheduled_tokens == {"a": 1, "c": 3}
    assert ids(scheduler.waiting) == ["b"]


# ------------------------------------------------------------------ multi-step and tests' own


@pytest.mark.parametrize(("cls", "prefill", "decode"), [(VllmV0, 0, 7), (VllmV0Chunked, 7, 7)])
def test_eight_steps_per_plan_need_seven_lookahead_slots(
    cls: type[VllmV0], prefill: int, decode: int
) -> None:
    scheduler = make_v0(cls, num_scheduler_steps=8)
    assert scheduler._num_lookahead_slots(is_prefill=True) == prefill
    assert scheduler._num_lookahead_slots(is_prefill=False) == decode
    add(scheduler, make_request("a", 8))
    step(scheduler)
    assert len(table(scheduler, "a")) == (4 if prefill else 2)
    step(scheduler)
    assert len(table(scheduler, "a")) == 4, "9 tokens and 7 slots ahead"


def test_multi_step_does_not_cut_prompts() -> None:
    scheduler = make_v0(VllmV0Chunked, num_scheduler_steps=2, budget=16, blocks=20)
    add(scheduler, make_request("a", 10), make_request("b", 10))
    assert step(scheduler).num_scheduled_tokens == {"a": 10}
    assert step(scheduler).num_scheduled_tokens == {"a": 1, "b": 10}


def test_artificial_preemptions_happen_without_need_and_so_often_at_most() -> None:
    scheduler = make_v0(blocks=40, artificial_preemptions=5)
    add(scheduler, *[make_request(name, 5, max_tokens=12) for name in "abc"])
    assert sum(len(step(scheduler).preempted_req_ids) for _ in range(60)) == 5
    assert not scheduler.requests


def make_group(scheduler: VllmV0, n: int, prompt: int, max_tokens: int = 8) -> None:
    tokens = list(range(100, 100 + prompt))
    add(scheduler, *[make_request(f"{i}_g", tokens, max_tokens=max_tokens) for i in range(n)])


def test_one_computes_the_prompt_and_the_others_fork() -> None:
    """6 tokens: block 1 is full and shared for good, block 2 is copied by each fork."""
    scheduler = make_v0()
    make_group(scheduler, 3, prompt=6)
    assert step(scheduler).num_scheduled_tokens == {"0_g": 6}
    output = step(scheduler)
    assert output.num_scheduled_tokens == {"0_g": 1, "1_g": 1, "2_g": 1}
    assert [new.num_computed_tokens for new in output.scheduled_new_reqs] == [5, 5]
    assert [table(scheduler, f"{i}_g") for i in range(3)] == [[1, 2], [1, 3], [1, 4]]
    assert output.blocks_to_copy == [(2, 3), (2, 4)]
    assert scheduler.kv_cache_manager.num_free_blocks == 12 - 4


def test_no_copy_is_needed_where_the_last_token_begins_a_block() -> None:
    scheduler = make_v0()
    make_group(scheduler, 2, prompt=9)
    step(scheduler)
    output = step(scheduler)
    assert output.blocks_to_copy == []
    assert table(scheduler, "0_g")[:2] == table(scheduler, "1_g")[:2]
    assert table(scheduler, "0_g")[2] != table(scheduler, "1_g")[2]


def test_forks_wait_for_rows_and_for_the_whole_prompt() -> None:
    scheduler = make_v0(VllmV0Chunked, budget=4, seqs=2)
    make_group(scheduler, 3, prompt=7, max_tokens=3)
    assert step(scheduler).num_scheduled_tokens == {"0_g": 4}
    assert step(scheduler).num_scheduled_tokens == {"0_g": 3}
    assert step(scheduler).num_scheduled_tokens == {"0_g": 1, "1_g": 1}, "no third row"


def test_a_fork_waits_for_a_block_to_copy_to() -> None:
    scheduler = make_v0(blocks=4)
    make_group(scheduler, 2, prompt=6, max_tokens=3)
    add(scheduler, make_request("a", 3, max_tokens=2))
    step(scheduler)
    assert step(scheduler).num_scheduled_tokens == {"0_g": 1, "a": 1, "1_g": 1}
    scheduler = make_v0(blocks=3)
    make_group(scheduler, 2, prompt=9, max_tokens=3)
    step(scheduler)
    assert ids(scheduler.skipped_waiting) == ["1_g"]
    assert "1_g" not in step(scheduler).num_scheduled_tokens, "all blocks are the first member's"
    step_until(scheduler, lambda plan: "1_g" in plan.num_scheduled_tokens)


def test_a_member_with_output_is_no_fork_any_more() -> None:
    """It has tokens of its own to compute again, and that is a prompt's work."""
    scheduler = make_v0(preemption_mode=RECOMPUTE)
    make_group(scheduler, 2, prompt=6)
    for _ in range(3):
        step(scheduler)
    plan = scheduler.new_plan(0)
    assert isinstance(plan, V0Plan)
    member = scheduler.requests["1_g"]
    scheduler._preempt_group(plan, [member])
    scheduler._settle(plan)
    assert step(scheduler).num_scheduled_tokens == {"1_g": member.num_tokens - 1}


def test_a_group_is_swapped_together_and_its_shared_block_once() -> None:
    scheduler = make_v0(blocks=6)
    add(scheduler, make_request("a", 7, max_tokens=12))
    step(scheduler)
    make_group(scheduler, 2, prompt=6, max_tokens=9)
    step(scheduler)  # the group's prompt
    step(scheduler)  # the fork
    output = step_until(scheduler, lambda plan: plan.preempted_req_ids)
    assert output.preempted_req_ids == ["0_g", "1_g"]
    assert swapped(scheduler) == [["0_g", "1_g"]]
    hosts = scheduler.kv_cache_manager.host_tables
    assert hosts["0_g"][0] == hosts["1_g"][0] and hosts["0_g"][1] != hosts["1_g"][1]
    assert len(output.blocks_to_swap_out) == 3
    output = step_until(scheduler, lambda plan: plan.blocks_to_swap_in)
    assert len(output.blocks_to_swap_in) == 3
    assert table(scheduler, "0_g")[0] == table(scheduler, "1_g")[0]


def test_a_group_with_the_machine_to_itself_gives_up_a_member() -> None:
    """Swapped out as a whole it would come back to the same pool, and not fit again."""
    scheduler = make_v0(blocks=4)
    make_group(scheduler, 3, prompt=6, max_tokens=9)
    preempted = [step(scheduler).preempted_req_ids for _ in range(3)]
    assert preempted == [[], [], ["2_g", "1_g"]] and ids(scheduler.running) == ["0_g"]
    drain(scheduler)


def start_group(scheduler: VllmV0) -> None:
    make_group(scheduler, 3, prompt=6)
    step(scheduler)
    step(scheduler)


def swap_group(scheduler: VllmV0) -> None:
    start_group(scheduler)
    plan = scheduler.new_plan(0)
    scheduler._preempt_group(plan, list(scheduler.running))  # type: ignore[arg-type]
    assert swapped(scheduler) == [["0_g", "1_g", "2_g"]]


def queue_group(scheduler: VllmV0) -> None:
    make_group(scheduler, 3, prompt=6)


@pytest.mark.parametrize("prepare", [queue_group, start_group, swap_group])
def test_a_group_is_aborted_by_its_name_wherever_it_is(
    prepare: Callable[[VllmV0], None],
) -> None:
    scheduler = make_v0()
    prepare(scheduler)
    done = scheduler.finish_requests("g", RequestStatus.FINISHED_ABORTED)
    assert done == ["0_g", "1_g", "2_g"]
    assert not scheduler.requests and not scheduler.running and not scheduler.swapped
    assert scheduler.kv_cache_manager.num_free_blocks == 12
    assert len(scheduler.kv_cache_manager.free_host_blocks) == 12
    scheduler.check_integrity()
    assert scheduler.finish_requests("g", RequestStatus.FINISHED_ABORTED) == []


def test_a_finished_member_leaves_the_others_running() -> None:
    scheduler = make_v0()
    start_group(scheduler)
    free = scheduler.kv_cache_manager.num_free_blocks
    scheduler.finish_requests("0_g", RequestStatus.FINISHED_STOPPED)
    scheduler.check_integrity()
    assert scheduler.kv_cache_manager.num_free_blocks == free + 1, "the shared block stays"
    assert ids(scheduler.groups.of(scheduler.requests["1_g"])) == ["1_g", "2_g"]
    assert step(scheduler).num_scheduled_tokens == {"1_g": 1, "2_g": 1}


def test_requests_with_other_prompts_are_no_group() -> None:
    scheduler = make_v0()
    add(scheduler, make_request("0_g", [1, 2, 3]), make_request("1_g", [1, 2, 4]))
    assert step(scheduler).num_scheduled_tokens == {"0_g": 3, "1_g": 3}


def test_a_request_with_the_name_of_a_group_is_not_in_it() -> None:
    scheduler = make_v0()
    make_group(scheduler, 2, prompt=6)
    add(scheduler, make_request("g", 6))
    assert step(scheduler).num_scheduled_tokens == {"0_g": 6, "g": 6}
    assert ids(scheduler.groups.of(scheduler.requests["g"])) == ["g"]
    done = scheduler.finish_requests("g", RequestStatus.FINISHED_ABORTED)
    assert done == ["0_g", "1_g", "g"], "the name stands for both"


def test_prompt_logprobs_need_the_prompt_computed_again() -> None:
    scheduler = make_v0()
    for index in range(2):
        add(scheduler, make_request(f"{index}_g", [1, 2, 3], prompt_logprobs=1))
    assert step(scheduler).num_scheduled_tokens == {"0_g": 3, "1_g": 3}


def test_the_prefix_cache_is_not_reset_while_requests_are_swapped() -> None:
    """No request holds a device block, but the host holds KV of the old weights."""
    scheduler = make_v0(caching=True)
    swap_group(scheduler)
    assert not scheduler.running and not scheduler.reset_prefix_cache()
