"""What the rules of `scheduler_profile="current"` ask of your scheduler, one test a rule. Optional:

    make lab-03 ARGS="--profile current"

Your eight tasks follow vLLM 0.22.1. Each rule stands in mini_vllm/config/profiles.py, and most of
it in mini_vllm/core/profile_rules.py; here is what is left for your functions.
"""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.request import RequestStatus


class Lacks(SchedulerExtension):
    """Lets some requests have no tokens, and some not be admitted."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def limit_tokens(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        return 0 if request.request_id in self.names else num_new_tokens

    def may_admit(self, request: Any, running: Any) -> bool:
        return request.request_id not in self.names


def test_profile_the_only_request_is_not_capped(chat: Any) -> None:
    """`lone_prefill_uncapped`: compare with `long_prefill_cap`, not with the configured threshold;
    in `_clamp_new_tokens` and in `_try_admit`."""
    scheduler = chat.scheduler(profile="current", threshold=4, budget=8)
    scheduler.add_request(chat.request("ana", 14))
    at = "rule lone_prefill_uncapped: threshold 4, budget 8, ana is the only request"
    expect(scheduler.schedule().num_scheduled_tokens, {"ana": 8}, at=f"{at}, and is admitted")
    expect(scheduler.schedule().num_scheduled_tokens, {"ana": 6}, at=f"{at}, and runs")
    scheduler = chat.scheduler(profile="current", threshold=4, budget=8)
    for name in ("ana", "ben"):
        scheduler.add_request(chat.request(name, 14))
    at = "rule lone_prefill_uncapped: threshold 4, budget 8, there are two requests"
    expect(scheduler.schedule().num_scheduled_tokens, {"ana": 4, "ben": 4}, at=at)


def test_profile_a_skipped_request_goes_back_to_its_queue(chat: Any) -> None:
    """`skipped_keep_their_queue`: put them into `skipped_waiting`; `_return_skipped` brings them
    back in front of those whose turn did not come."""
    scheduler = chat.scheduler(profile="current", rows=2, extensions=[Lacks("ana", "ben")])
    for name in ("ana", "ben", "cleo", "dan", "eve"):
        scheduler.add_request(chat.request(name, 3))
    plan = scheduler.schedule()
    at = "rule skipped_keep_their_queue: two rows; ana and ben may not be admitted"
    expect(list(plan.num_scheduled_tokens), ["cleo", "dan"], at=f"{at}: who runs")
    expect(chat.names(scheduler.waiting), ["ana", "ben", "eve"], at=f"{at}: waiting")
    expect(chat.names(scheduler.skipped_waiting), [], at=f"{at}: skipped_waiting")


def test_profile_no_request_is_passed_over(chat: Any) -> None:
    """`victim_moves_position`: tell `_refund` the position in hand, and move it if the answer is
    yes; in `_schedule_running`."""
    lacks = Lacks("ana")
    scheduler = chat.scheduler(profile="current", policy="priority", blocks=4, extensions=[lacks])
    for name, priority, tokens in (("ana", 9, 8), ("ben", 0, 4), ("cleo", 1, 3)):
        request = chat.request(name, tokens, priority=priority)
        chat.start(scheduler, request, computed=tokens, output=1)
    plan = scheduler.schedule()
    at = "rule victim_moves_position: ana gets no tokens, ben needs a block and takes hers"
    expect(plan.num_scheduled_tokens, {"ben": 1, "cleo": 1}, at=at)


def test_profile_a_stop_token_ends_a_request_below_min_tokens(chat: Any) -> None:
    """`stop_ignores_min_tokens`: ask `self.rules` beside `min_tokens`; in `check_stop`."""
    scheduler = chat.scheduler(profile="current")
    request = chat.start(scheduler, chat.request("ana", 4, eos=7000, min_tokens=3), 4, output=1)
    at = "rule stop_ignores_min_tokens: ana's first token is the EOS; min_tokens is 3"
    expect(scheduler.check_stop(request), RequestStatus.FINISHED_STOPPED, at=at)


def test_profile_an_admission_has_slots_for_drafts(chat: Any) -> None:
    """`lookahead_at_admission`: hand `**self._at_admission()` on to `allocate_slots`; in
    `_try_admit`."""
    scheduler = chat.scheduler(profile="current", lookahead=4)
    scheduler.add_request(chat.request("ana", 4))
    plan = scheduler.schedule()
    at = "rule lookahead_at_admission: 4 tokens and 4 slots for drafts, blocks of 4"
    expect(plan.new_block_ids, {"ana": [1, 2]}, at=at)
