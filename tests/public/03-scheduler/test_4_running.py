"""Task 03.4: the running pass, and the count that advances."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.core.scheduler import PauseState
from mini_vllm.request import RequestStatus


def test_03_4_a_decode_takes_a_block_only_at_the_border(chat: Any) -> None:
    """One token each; a new block only for the one whose last block is full."""
    scheduler = chat.scheduler()
    chat.start(scheduler, chat.request("ana", 4), computed=4, output=1)
    chat.start(scheduler, chat.request("ben", 5), computed=5, output=1)
    step = chat.step(scheduler)
    scheduler._schedule_running(step)
    at = "ana has 4 computed of 5 tokens, ben 5 of 6; a block holds 4"
    expect(step.num_scheduled_tokens, {"ana": 1, "ben": 1}, at=at)
    expect(step.new_block_ids, {"ana": [4]}, at=f"{at}: who needs a new block?")
    expect(step.token_budget, 14, at="budget 16, two decodes")
    scheduler = chat.scheduler(lookahead=3)
    chat.start(scheduler, chat.request("cleo", 5), computed=5, output=1)
    step = chat.step(scheduler)
    scheduler._schedule_running(step)
    at = "cleo has 5 computed of 6 tokens and 3 of lookahead: slots for 9, she holds 2 blocks of 4"
    expect(step.new_block_ids, {"cleo": [3]}, at=at)


def test_03_4_in_order_of_admission_until_the_budget_is_used_up(chat: Any) -> None:
    """The first come are served whole, the next gets the rest, the last nothing."""
    scheduler = chat.scheduler(budget=10, threshold=6, blocks=20)
    for name in ("ana", "ben", "cleo"):
        chat.start(scheduler, chat.request(name, 20), computed=4)
    step = chat.step(scheduler)
    scheduler._schedule_running(step)
    at = "three prompts with 16 tokens to go each; budget 10, threshold 6"
    expect(step.num_scheduled_tokens, {"ana": 6, "ben": 4}, at=at)
    held = {name: len(chat.table(scheduler, name)) for name in ("ana", "ben", "cleo")}
    expect(held, {"ana": 3, "ben": 2, "cleo": 1}, at="blocks held now: for 10, 8 and 4 tokens")


def test_03_4_a_request_without_tokens_to_compute_is_passed_over(chat: Any) -> None:
    """0 tokens for one request is no reason to stop: the next one may have work."""
    scheduler = chat.scheduler()
    chat.start(scheduler, chat.request("ana", 4), computed=4)
    chat.start(scheduler, chat.request("ben", 8), computed=4)
    step = chat.step(scheduler)
    scheduler._schedule_running(step)
    at = "ana's 4 tokens are computed, her next is still being sampled; ben has 4 to go"
    expect(step.num_scheduled_tokens, {"ben": 4}, at=at)
    expect(chat.names(scheduler.running), ["ana", "ben"], at="both stay in `running`")


def test_03_4_none_means_preempt_until_it_fits(chat: Any) -> None:
    """Too few blocks: preempt the last one admitted, try again, as often as it takes."""
    scheduler = chat.scheduler(blocks=5)
    chat.start(scheduler, chat.request("ana", 15), computed=4)
    for name in ("ben", "cleo", "dan"):
        chat.start(scheduler, chat.request(name, 3), computed=3, output=1)
    step = chat.step(scheduler)
    scheduler._schedule_running(step)
    at = "5 blocks, 1 free; ana needs 3 more; ben, cleo and dan hold 1 each and need none"
    expect(chat.names(step.preempted), ["dan", "cleo"], at=f"{at}: step.preempted")
    expect(chat.names(scheduler.running), ["ana", "ben"], at=at)
    expect(step.num_scheduled_tokens, {"ana": 11, "ben": 1}, at=at)


def test_03_4_a_request_that_is_its_own_victim_ends_the_pass(chat: Any) -> None:
    """Priority: later requests could go on, yet the pass ends, as in vLLM."""
    scheduler = chat.scheduler(blocks=3, policy="priority")
    chat.start(scheduler, chat.request("ana", 4, priority=0), computed=4)
    chat.start(scheduler, chat.request("ben", 4, priority=9), computed=4, output=1)
    chat.start(scheduler, chat.request("cleo", 3, priority=1), computed=3, output=1)
    step = chat.step(scheduler)
    scheduler._schedule_running(step)
    at = "no free block; ben needs one and is himself the least urgent; cleo needs none"
    expect(chat.names(step.preempted), ["ben"], at=at)
    expect(step.num_scheduled_tokens, {}, at=f"{at}: who gets tokens in this step?")
    expect(chat.names(scheduler.running), ["ana", "cleo"], at="cleo stays and runs next step")


def test_03_4_a_victim_that_was_planned_gives_everything_back(chat: Any) -> None:
    """Priority: tokens and blocks return to the plan, and no request loses a turn."""
    scheduler = chat.scheduler(blocks=4, policy="priority", budget=6)
    chat.start(scheduler, chat.request("ana", 8, priority=9), computed=4)
    chat.start(scheduler, chat.request("ben", 4, priority=0), computed=4, output=1)
    chat.start(scheduler, chat.request("cleo", 4, priority=1), computed=4, output=1)
    step = chat.step(scheduler)
    scheduler._schedule_running(step)
    at = "4 blocks; ana (priority 9) got 4 tokens and the last one, then ben (0) needs a block"
    expect(chat.names(step.preempted), ["ana"], at=at)
    expect(step.num_scheduled_tokens, {"ben": 1, "cleo": 1}, at=f"{at}, then cleo (1)")
    expect(sorted(step.new_block_ids), ["ben", "cleo"], at="who has new blocks in the plan?")
    expect(step.token_budget, 4, at="budget 6; ana's 4 tokens are not computed after all")


def test_03_4_a_request_that_can_never_fit_preempts_no_other(chat: Any) -> None:
    """A request that outgrows the whole pool ends; the others keep their blocks."""
    scheduler = chat.scheduler(blocks=3)
    chat.start(scheduler, chat.request("ben", 3), computed=3, output=1)
    ana = chat.start(scheduler, chat.request("ana", 8, max_tokens=30), computed=8, output=5)
    step = chat.step(scheduler)
    scheduler._schedule_running(step)
    at = "3 blocks are 12 tokens in all; ana has 13"
    expect(ana.status, RequestStatus.FINISHED_LENGTH_CAPPED, at=at)
    expect(step.num_scheduled_tokens, {"ben": 1}, at=at)
    expect(chat.names(step.preempted), [], at=f"{at}: who is preempted?")


def test_03_4_computed_tokens_advance_inside_schedule(chat: Any) -> None:
    """When schedule() returns, its tokens count as computed: the next step can be planned."""
    scheduler = chat.scheduler(budget=6)
    ana = chat.start(scheduler, chat.request("ana", 12), computed=2)
    scheduler.pause_state = PauseState.PAUSED_NEW  # running requests only
    expect(scheduler.schedule().num_scheduled_tokens, {"ana": 6}, at="ana has 10 to go, budget 6")
    expect(ana.num_computed_tokens, 8, at="schedule() has returned, nothing has run yet")
    again = scheduler.schedule().num_scheduled_tokens
    expect(again, {"ana": 4}, at="a second step, planned before the first one has run")


def test_03_4_finished_ids_are_handed_over_once(chat: Any) -> None:
    """The worker hears of a finished request in exactly one plan, and that plan keeps the id."""
    scheduler = chat.scheduler()
    chat.start(scheduler, chat.request("ana", 4), computed=2)
    scheduler.finished_req_ids.add("ben")
    scheduler.pause_state = PauseState.PAUSED_NEW
    first, second = scheduler.schedule(), scheduler.schedule()
    expect(first.finished_req_ids, {"ben"}, at="ben has finished before this plan was made")
    expect(second.finished_req_ids, set(), at="the plan after it")
