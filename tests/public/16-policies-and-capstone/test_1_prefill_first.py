"""Task 16.1: MinivLLM's step, prompts or tokens."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.request import RequestStatus

SHARED = list(range(12))
"""Three full blocks that two prompts have in common."""


def test_16_1_prompts_come_first_and_tokens_stand_still(desk: Any) -> None:
    """A step computes prompts, or one token for each running request: never both."""
    scheduler = desk.minivllm()
    desk.add(scheduler, desk.request("ana", 5), desk.request("ben", 6))
    at = "ana (5 tokens) and ben (6) wait, nobody runs; two steps"
    expect(desk.plans(scheduler, 2), [{"ana": 5, "ben": 6}, {"ana": 1, "ben": 1}], at=at)
    desk.add(scheduler, desk.request("cleo", 7))
    at = "ana and ben make tokens; now cleo's prompt of 7 arrives; two steps"
    wanted = [{"cleo": 7}, {"ana": 1, "ben": 1, "cleo": 1}]
    expect(desk.plans(scheduler, 2), wanted, at=at)


def test_16_1_a_prompt_is_computed_whole(desk: Any) -> None:
    """What does not fit the budget whole waits for the next step."""
    scheduler = desk.minivllm(budget=16)
    desk.add(scheduler, desk.request("ana", 10), desk.request("ben", 8), desk.request("cleo", 8))
    at = "prompts of 10, 8 and 8 tokens, budget 16; two steps"
    expect(desk.plans(scheduler, 2), [{"ana": 10}, {"ben": 8, "cleo": 8}], at=at)


def test_16_1_no_request_is_overtaken(desk: Any) -> None:
    """The first that lacks blocks ends the pass, though one behind it would fit."""
    scheduler = desk.minivllm(blocks=8)
    people = [desk.request("ana", 21), desk.request("ben", 9), desk.request("cleo", 2)]
    desk.add(scheduler, *people)
    at = "8 blocks: ana fills 6; ben needs 3 of the 2 that are left, cleo 1"
    expect(desk.plans(scheduler, 2), [{"ana": 21}, {"ana": 1}], at=at)
    expect(desk.names(scheduler.waiting), ["ben", "cleo"], at=f"{at}: the line afterwards")


def test_16_1_max_num_seqs_limits_running_requests(desk: Any) -> None:
    """max_num_seqs bounds all running requests, not those of one step."""
    scheduler = desk.minivllm(rows=2)
    desk.add(scheduler, *[desk.request(name, 3, max_tokens=3) for name in ("ana", "ben", "cleo")])
    at = "2 rows; ana, ben and cleo have prompts of 3 and answers of 3; four steps"
    both = {"ana": 1, "ben": 1}
    expect(desk.plans(scheduler, 4), [{"ana": 3, "ben": 3}, both, both, {"cleo": 3}], at=at)


def second_prompt(desk: Any, budget: int = 32, blocks: int = 20) -> list[dict[str, int]]:
    """ana runs; ben comes with 12 of her tokens and 2 of his own, then cleo with 3."""
    scheduler = desk.minivllm(blocks=blocks, budget=budget)
    desk.add(scheduler, desk.request("ana", [*SHARED, 50]))
    desk.step(scheduler)
    desk.add(scheduler, desk.request("ben", [*SHARED, 60, 61]), desk.request("cleo", 3))
    return list(desk.plans(scheduler, 1))


def test_16_1_cached_tokens_are_not_computed_but_charged(desk: Any) -> None:
    """MinivLLM's budget counts the whole prompt, hits included."""
    at = "ben has 14 tokens, 12 of them cached; cleo has 3; budget 17"
    expect(second_prompt(desk, budget=17), [{"ben": 2, "cleo": 3}], at=at)
    at = "the same with budget 16: 14 + 3 are too many"
    expect(second_prompt(desk, budget=16), [{"ben": 2}], at=at)


def test_16_1_blocks_that_could_be_shared_are_asked_for(desk: Any) -> None:
    """MinivLLM admits only if the whole prompt would fit without the cache."""
    at = "7 blocks: ana holds 4; ben needs 4, though 3 of them are ana's; nobody is admitted"
    expect(second_prompt(desk, blocks=7), [{"ana": 1}], at=at)


def test_16_1_a_request_that_can_never_fit_ends_and_the_next_is_served(desk: Any) -> None:
    """A prompt beyond the budget would block the line for ever."""
    scheduler = desk.minivllm(budget=8)
    ana = desk.request("ana", 9)
    desk.add(scheduler, ana, desk.request("ben", 4))
    at = "budget 8; ana's prompt has 9 tokens, ben waits behind her with 4"
    expect(desk.plans(scheduler, 1), [{"ben": 4}], at=at)
    expect(ana.status, RequestStatus.FINISHED_IGNORED, at=f"{at}: what becomes of ana?")
