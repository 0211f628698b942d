"""Static batching, MinivLLM and nano-vLLM, decision by decision."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.interface import NoProgressError, PauseState
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_plan import StepPlan
from mini_vllm.policies import POLICIES
from mini_vllm.policies.prefill_first import MinivLLM, NanoVLLM
from mini_vllm.policies.static import Static
from mini_vllm.request import Request, RequestStatus
from tests.engine.core.build import add, drain, ids, make_request, step, step_until, table

PREFILL_FIRST = (MinivLLM, NanoVLLM)
SHARED = list(range(12))


def make(
    cls: type[Scheduler],
    blocks: int = 20,
    block_size: int = 4,
    budget: int = 32,
    seqs: int = 8,
    max_model_len: int = 32,
    caching: bool = True,
    **config: Any,
) -> Scheduler:
    scheduler = SchedulerConfig(budget, seqs, max_model_len, **config)
    return cls(scheduler, CacheConfig(block_size, blocks + 1, caching), (), b"root")


def plans(scheduler: Scheduler, steps: int) -> list[dict[str, int]]:
    return [step(scheduler).num_scheduled_tokens for _ in range(steps)]


# ------------------------------------------------------------------ both


@pytest.mark.parametrize("cls", PREFILL_FIRST)
def test_a_step_is_prompts_or_tokens_and_prompts_come_first(cls: type[Scheduler]) -> None:
    scheduler = make(cls)
    add(scheduler, make_request("a", 5), make_request("b", 6))
    assert plans(scheduler, 2) == [{"a": 5, "b": 6}, {"a": 1, "b": 1}]
    add(scheduler, make_request("c", 7))
    assert plans(scheduler, 2) == [{"c": 7}, {"a": 1, "b": 1, "c": 1}]


@pytest.mark.parametrize("cls", PREFILL_FIRST)
def test_the_first_that_does_not_fit_ends_the_pass(cls: type[Scheduler]) -> None:
    """2 blocks are left: c would fit into them, but it does not overtake b."""
    scheduler = make(cls, blocks=8)
    add(scheduler, make_request("a", 21), make_request("b", 9), make_request("c", 2))
    assert plans(scheduler, 1) == [{"a": 21}]
    assert ids(scheduler.waiting) == ["b", "c"]


@pytest.mark.parametrize("cls", PREFILL_FIRST)
def test_max_num_seqs_limits_running_requests_not_only_the_batch(cls: type[Scheduler]) -> None:
    """In the originals ``max_num_seqs`` bounds a batch. After a few prompt steps more sequences
    run than may decode, and those at the tail starve with all of their blocks."""
    scheduler = make(cls, seqs=2)
    add(scheduler, *[make_request(name, 3, max_tokens=3) for name in "abcd"])
    assert plans(scheduler, 3) == [{"a": 3, "b": 3}, {"a": 1, "b": 1}, {"a": 1, "b": 1}]
    assert plans(scheduler, 1) == [{"c": 3, "d": 3}]


@pytest.mark.parametrize("cls", PREFILL_FIRST)
@pytest.mark.parametrize(("prompt", "preempts"), [(7, False), (8, True), (9, False)])
def test_a_block_is_needed_at_the_first_token_of_a_block(
    cls: type[Scheduler], prompt: int, preempts: bool
) -> None:
    """``len(seq) % block_size == 1`` is right: the new token is counted before it is computed.

    Prompts of 7, 8 and 9 tokens in blocks of 4, and no free block. The next token goes to
    position 7, 8 or 9: only position 8 begins a block. MinivLLM tested ``== 0`` at first, which
    preempts one token too early and then runs out of blocks.
    """
    blocks = 2 * -(-prompt // 4)
    scheduler = make(cls, blocks=blocks)
    add(scheduler, make_request("a", prompt), make_request("b", prompt))
    step(scheduler)
    assert scheduler.kv_cache_manager.num_free_blocks == 0
    assert step(scheduler).preempted_req_ids == (["b"] if preempts else [])


@pytest.mark.parametrize("cls", PREFILL_FIRST)
def test_the_youngest_go_first_and_wait_in_front(cls: type[Scheduler]) -> None:
    scheduler = make(cls, blocks=6, caching=False)
    add(scheduler, *[make_request(name, 8, max_tokens=4) for name in "abc"])
    step(scheduler)
    add(scheduler, make_request("d", 8))
    output = step(scheduler)
    assert output.preempted_req_ids == ["c"]
    assert output.num_scheduled_tokens == {"a": 1, "b": 1}
    assert ids(scheduler.waiting) == ["c", "d"]
    c = scheduler.requests["c"]
    assert c.num_computed_tokens == 0 and c.num_output_tokens == 1, "its token is not lost"
    output = step_until(scheduler, lambda plan: plan.scheduled_cached_reqs.resumed_req_ids)
    assert output.num_scheduled_tokens["c"] == 9


@pytest.mark.parametrize("cls", PREFILL_FIRST)
def test_a_lone_request_that_outgrows_the_pool_ends(cls: type[Scheduler]) -> None:
    """Both originals go wrong: MinivLLM preempts it for ever, nano-vLLM fails an assertion."""
    scheduler = make(cls, blocks=2)
    request = make_request("a", 6, max_tokens=20)
    add(scheduler, request)
    drain(scheduler, max_steps=10)
    assert request.status == RequestStatus.FINISHED_LENGTH_CAPPED
    assert request.stop_reason == "kv_capacity" and request.num_output_tokens == 3


@pytest.mark.parametrize("cls", PREFILL_FIRST)
def test_the_model_length_stops_a_request(cls: type[Scheduler]) -> None:
    scheduler = make(cls, max_model_len=10)
    request = make_request("a", 6, max_tokens=None)
    add(scheduler, request)
    drain(scheduler)
    assert request.num_tokens == 10


@pytest.mark.parametrize("cls", PREFILL_FIRST)
def test_priorities_are_not_known(cls: type[Scheduler]) -> None:
    scheduler = make(cls, seqs=1, policy="priority")
    add(scheduler, make_request("a", 4, priority=9), make_request("b", 4, priority=0))
    assert plans(scheduler, 1) == [{"a": 4}]


@pytest.mark.parametrize("cls", PREFILL_FIRST)
def test_while_admission_is_paused_tokens_go_on(cls: type[Scheduler]) -> None:
    scheduler = make(cls)
    add(scheduler, make_request("a", 4))
    step(scheduler)
    add(scheduler, make_request("b", 4))
    scheduler.pause_state = PauseState.PAUSED_NEW
    assert plans(scheduler, 1) == [{"a": 1}]
    scheduler.pause_state = PauseState.PAUSED_ALL
    assert plans(scheduler, 1) == [{}]
    scheduler.pause_state = PauseState.UNPAUSED
    assert plans(scheduler, 1) == [{"b": 4}]


class Gate(SchedulerExtension):
    """Requests that wait for a grammar are ready when ``ready`` says so."""

    ready = False

    def is_ready(self, request: Request) -> bool:
        return self.ready


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_blocked_request_is_passed_and_then_comes_first(name: str) -> None:
    gate = Gate()
    cls = POLICIES[name]
    scheduler = cls(SchedulerConfig(32, 1, 32), CacheConfig(4, 21), [gate], b"root")
    blocked = [make_request(f"g{i}", 5, max_tokens=2) for i in range(2)]
    for request in blocked:
        request.transition_to(RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)
    add(scheduler, *blocked, make_request("a", 5, max_tokens=2), make_request("b", 5))
    assert plans(scheduler, 2) == [{"a": 5}, {"a": 1}]
    gate.ready = True
    assert plans(scheduler, 3) == [{"g0": 5}, {"g0": 1}, {"g1": 5}]


# ------------------------------------------------------------------ what tells them apart


def second_prompt(cls: type[Scheduler], budget: int, blocks: int = 20) -> list[dict[str, int]]:
    """14 tokens of which 12 are cached, beside a running request that holds the same blocks."""
    scheduler = make(cls, budget=budget, blocks=blocks)
    add(scheduler, make_request("a", [*SHARED, 50]))
    step(scheduler)
    add(scheduler, make_request("b", [*SHARED, 60, 61]), make_request("c", [70, 71, 72]))
    return plans(scheduler, 1)


def test_minivllm_charges_cached_tokens_and_nano_vllm_does_not() -> None:
    assert second_prompt(MinivLLM, budget=16) == [{"b": 2}]
    assert second_prompt(MinivLLM, budget=17) == [{"b": 2, "c": 3}]
    assert second_prompt(NanoVLLM, budget=16) == [{"b": 2, "c": 3}]


def test_minivllm_asks_for_blocks_that_it_will_share() -> None:
    """b needs 4 blocks, 3 of them are a's, 3 are free."""
    assert second_prompt(MinivLLM, budget=32, blocks=7) == [{"a": 1}]
    assert second_prompt(NanoVLLM, budget=32, blocks=7) == [{"b": 2, "c": 3}]


def test_nano_vllm_cuts_only_the_first_prompt_of_a_step() -> None:
    scheduler = make(NanoVLLM, budget=10)
    add(scheduler, make_request("a", 24), make_request("b", 7), make_request("c", 3))
    assert plans(scheduler, 4) == [{"a": 10}, {"a": 10}, {"a": 4}, {"b": 7, "c": 3}]


def test_a_cut_prompt_holds_all_of_its_blocks_and_stops_all_tokens() -> None:
    scheduler = make(NanoVLLM, budget=10)
    add(scheduler, make_request("a", 4))
    step(scheduler)
    add(scheduler, make_request("b", 24))
    assert plans(scheduler, 1) == [{"b": 10}]
    assert len(table(scheduler, "b")) == 6
    assert plans(scheduler, 3) == [{"b": 10}, {"b": 4}, {"a": 1, "b": 1}]


def test_a_cut_prompt_that_is_aborted_is_not_continued() -> None:
    scheduler = make(NanoVLLM, budget=10)
    add(scheduler, make_request("a", 24), make_request("b", 7))
    step(scheduler)
    scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert plans(scheduler, 1) == [{"b": 7}]


def test_nano_vllm_publishes_after_the_forward_pass_and_minivllm_before() -> None:
    """Two equal prompts in one step: nano-vLLM computes both, MinivLLM shares at once."""
    for cls, second in ((NanoVLLM, 13), (MinivLLM, 1)):
        scheduler = make(cls)
        add(scheduler, make_request("a", [*SHARED, 50]), make_request("b", [*SHARED, 50]))
        assert plans(scheduler, 1) == [{"a": 13, "b": second}]
        add(scheduler, make_request("c", [*SHARED, 50]))
        assert plans(scheduler, 1) == [{"c": 1}]


@pytest.mark.parametrize("cls", [Static, MinivLLM])
def test_a_prompt_beyond_the_budget_is_ignored(
    cls: type[Scheduler], caplog: pytest.LogCaptureFixture
) -> None:
    """MinivLLM lets it wait for ever, and everyone behind it. nano-vLLM cuts it."""
    caplog.set_level(logging.WARNING, logger="mini_vllm")
    scheduler = make(cls, budget=8)
    big = make_request("big", 9)
    add(scheduler, big, make_request("a", 4))
    assert plans(scheduler, 1) == [{"a": 4}]
    assert big.status == RequestStatus.FINISHED_IGNORED and big.stop_reason == "prompt_limit"
    said = f"'big' needs room for 9 tokens, and {cls.__name__} has it for 8 at most"
    assert said in caplog.text and "raise max_num_batched_tokens" in caplog.text
    nano = make(NanoVLLM, budget=8)
    add(nano, make_request("big", 9))
    assert plans(nano, 2) == [{"big": 8}, {"big": 1}]


def test_nano_vllm_with_chunked_prefill_off_ignores_it_too() -> None:
    scheduler = make(NanoVLLM, budget=8, enable_chunked_prefill=False)
    add(scheduler, make_request("big", 9), make_request("a", 4), make_request("b", 5))
    assert plans(scheduler, 2) == [{"a": 4}, {"b": 5}]


# ------------------------------------------------------------------ static batching


def test_a_batch_runs_until_its_last_request_has_ended() -> None:
    scheduler = make(Static, seqs=2)
    add(scheduler, make_request("a", 4, max_tokens=2), make_request("b", 4, max_tokens=5))
    assert plans(scheduler, 1) == [{"a": 4, "b": 4}]
    add(scheduler, make_request("c", 4, max_tokens=2))
    assert plans(scheduler, 4) == [{"a": 1, "b": 1}] + [{"b": 1}] * 3
    assert plans(scheduler, 1) == [{"c": 4}]


def test_a_batch_is_formed_over_several_steps_and_then_closed() -> None:
    scheduler = make(Static, seqs=4, budget=9)
    add(scheduler, *[make_request(name, 6) for name in "abc"])
    assert plans(scheduler, 4) == [{"a": 6}, {"b": 6}, {"c": 6}, {"a": 1, "b": 1, "c": 1}]
    add(scheduler, make_request("d", 6))
    assert plans(scheduler, 1) == [{"a": 1, "b": 1, "c": 1}], "a row is free, the batch is closed"


def test_a_batch_reserves_all_that_its_members_may_write() -> None:
    """a and b may fill 4 blocks each, c too: 11 blocks hold two of them, though 3 are used."""
    scheduler = make(Static, blocks=11)
    add(scheduler, *[make_request(name, 4, max_tokens=12) for name in "abc"])
    assert plans(scheduler, 2) == [{"a": 4, "b": 4}, {"a": 1, "b": 1}]


def test_static_batching_never_preempts() -> None:
    for seed in range(30):
        draw = random.Random(seed)
        scheduler = make(Static, blocks=draw.randint(8, 16), seqs=draw.randint(1, 6))
        for number in range(12):
            length, limit = draw.randint(1, 12), draw.choice([1, 5, 14, None])
            add(scheduler, make_request(f"r{number}", length, max_tokens=limit))
            for _ in range(draw.randrange(4)):
                assert step(scheduler).preempted_req_ids == []
        for _ in range(200):
            assert step(scheduler).preempted_req_ids == []
        assert not scheduler.requests


# ------------------------------------------------------------------ side by side


def test_the_same_work_takes_fewer_steps_from_policy_to_policy() -> None:
    """Sixteen requests of very different lengths: what holds the others up is worse, the earlier
    the policy. Steps are not seconds: a prompt step is longer than a token step."""
    steps = {}
    for name, cls in POLICIES.items():
        draw = random.Random(0)
        scheduler = make(cls, blocks=64, budget=32, max_model_len=32, seqs=4)
        for number in range(16):
            length, limit = draw.randint(1, 16), draw.choice([2, 4, 16])
            add(scheduler, make_request(f"r{number}", length, max_tokens=limit))
        steps[name] = drain(scheduler)
    assert steps["static"] > steps["minivllm"] >= steps["nano-vllm"] > steps["vllm-v1"]


def test_a_request_that_fits_and_is_not_admitted_is_named() -> None:
    """The budget is not the cause, and the message does not advise to raise it."""

    class Idle(MinivLLM):
        def _admit_prompts(self, step: StepPlan) -> None:
            """Admit no request."""

    scheduler = make(Idle, budget=8)
    add(scheduler, make_request("a", 8))
    with pytest.raises(NoProgressError, match=r"'a'.* not admitted, though .*_tokens=8: an ext"):
        scheduler.schedule()
