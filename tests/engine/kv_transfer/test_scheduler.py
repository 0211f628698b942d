"""KV that is on its way: admission, arrival, blocks that outlive their request, lost loads."""

from __future__ import annotations

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.interface import NoProgressError
from mini_vllm.core.restart import Checkpoint, restart
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.policies import POLICIES
from mini_vllm.request import RequestStatus
from mini_vllm.sampling_params import SamplingParams
from tests.engine.kv_transfer.scripted import Engine, Scripted

WAITS = RequestStatus.WAITING_FOR_REMOTE_KVS


def test_an_asynchronous_load_takes_blocks_and_nothing_else() -> None:
    engine = Engine(Scripted(tokens={"a": 16}), max_num_batched_tokens=8)
    a = engine.add("a", range(18))
    engine.add("b", range(100, 108))
    plan = engine.step()
    assert plan.num_scheduled_tokens == {"b": 8}, "a loads, and b has the whole budget"
    assert (a.status, a.num_computed_tokens) == (WAITS, 16)
    assert len(engine.blocks("a")) == 4, "blocks for what is loaded, and no more"
    manager = engine.scheduler.kv_cache_manager
    assert manager.block_pool.get_cached_block(a.block_hashes[0]) is None, "it is not here yet"
    engine.step(received=["a"])
    plan = engine.step()
    assert plan.num_scheduled_tokens["a"] == 2
    assert plan.new_block_ids["a"] == engine.blocks("a"), "a new request, with its whole table"
    assert manager.block_pool.get_cached_block(a.block_hashes[3]) is not None
    assert engine.outputs["a"][0].num_cached_tokens == 16


def test_a_synchronous_load_runs_in_the_same_step() -> None:
    engine = Engine(Scripted(is_async=False, tokens={"a": 16}))
    a = engine.add("a", range(18))
    assert engine.step().num_scheduled_tokens == {"a": 2}
    assert a.num_cached_tokens == 16
    engine.add("b", range(18))
    assert engine.step().num_scheduled_tokens["b"] == 2, "b finds what a has loaded"


@pytest.mark.parametrize("is_async", [False, True])
def test_phase_03_decides_which_requests_are_admitted(
    monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """Also of requests whose KV arrives, before this step's forward pass or earlier."""
    engine = Engine(Scripted(is_async=is_async, tokens={"a": 16}))
    a = engine.add("a", range(18))
    engine.scheduler.breaks_deadlocks = False
    if is_async:
        engine.step(received=["a"])
    with monkeypatch.context() as patched:
        patched.setattr(Scheduler, "_try_admit", lambda self, step, request: False)
        assert engine.scheduler.schedule().num_scheduled_tokens == {}
    assert engine.step().num_scheduled_tokens == {"a": 2}
    stats = engine.scheduler.kv_cache_manager.prefix_cache_stats
    external = engine.scheduler.external_cache_stats
    assert (stats.requests, stats.queries, stats.hits) == (1, 18, 0), "none was found here"
    assert (external.requests, external.queries, external.hits) == (1, 18, 16)
    assert a.num_cached_tokens == a.num_external_tokens == 16


def test_a_full_hit_computes_its_last_token_in_place() -> None:
    engine = Engine(Scripted(tokens={"a": 16}))
    a = engine.add("a", range(16))
    engine.step(received=["a"])
    table = engine.blocks("a")
    plan = engine.step()
    assert plan.num_scheduled_tokens == {"a": 1}
    assert plan.new_block_ids["a"] == table, "no new block"
    assert a.num_output_tokens == 1


def test_the_connector_is_asked_with_the_local_hit_and_told_of_every_admission() -> None:
    connector = Scripted(tokens={"b": 16})
    engine = Engine(connector)
    engine.add("a", range(9))
    engine.step()
    engine.add("b", range(18))
    engine.step(received=["b"])
    assert ("b", 8) in connector.asked
    engine.step()
    assert [(i, n) for i, _, n in connector.allocated] == [("a", 0), ("b", 8), ("b", 0)]


def test_none_means_ask_again_and_delays_no_other_request() -> None:
    connector = Scripted(tokens={"a": None})
    engine = Engine(connector)
    a, b = engine.add("a", range(8)), engine.add("b", range(50, 58))
    engine.step()
    assert (a.status, b.status) == (RequestStatus.WAITING, RequestStatus.RUNNING)
    engine.step()
    assert [i for i, _ in connector.asked].count("a") == 2, "once a step"
    connector.tokens["a"] = 0
    assert engine.step().num_scheduled_tokens["a"] == 8


def test_prompt_logprobs_need_every_token_computed() -> None:
    connector = Scripted(tokens={"a": 16})
    engine = Engine(connector)
    request = engine.add("a", range(18))
    request.sampling_params.prompt_logprobs = 1
    assert engine.step().num_scheduled_tokens == {"a": 18}
    assert connector.asked == []


def test_a_preempted_request_waits_for_its_kv_and_resumes() -> None:
    connector = Scripted(tokens={})
    engine = Engine(connector, num_gpu_blocks=7, scheduler_reserve_full_isl=False)
    engine.add("a", range(8), max_tokens=12)
    b = engine.add("b", range(50, 58), max_tokens=12)
    while b.num_preemptions == 0:
        engine.step()
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    held = b.num_tokens - 1
    engine.scheduler.kv_cache_manager.reset_prefix_cache()
    connector.tokens["b"] = held
    engine.step(received=["b"])
    assert b.status == WAITS
    plan = engine.step()
    assert plan.scheduled_cached_reqs.resumed_req_ids == {"b"}
    assert plan.num_scheduled_tokens == {"b": 1}


# ------------------------------------------------------------------ the end of a request


def test_blocks_that_are_written_to_outlive_an_abort() -> None:
    engine = Engine(Scripted(tokens={"a": 16}))
    engine.add("a", range(18))
    engine.step()
    free = engine.num_free
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert not engine.scheduler.has_unfinished_requests()
    assert engine.scheduler.has_requests(), "or the blocks would never be freed"
    engine.step()
    assert (engine.num_free, engine.scheduler.held) == (free, ["a"])
    engine.step(received=["a"])
    assert (engine.num_free, engine.scheduler.held) == (64, [])
    engine.step()
    assert not engine.scheduler.has_requests()


def test_blocks_that_are_sent_outlive_their_request_and_the_caller_is_told() -> None:
    connector = Scripted()
    connector.keeps.add("a")
    engine = Engine(connector)
    engine.add("a", range(8), max_tokens=1)
    engine.step()
    assert engine.outputs["a"][-1].kv_transfer_params == {"from": "a"}
    assert connector.finished == [("a", engine.blocks("a"))]
    with pytest.raises(ValueError, match="still being sent"):
        engine.scheduler.add_request(engine.requests["a"])
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert engine.scheduler.held == ["a"], "it has finished already: an abort frees nothing"
    assert not engine.scheduler.reset_prefix_cache()
    engine.step(sent=["a"])
    assert engine.num_free == 64


@pytest.mark.parametrize("order", [("recv", "send"), ("send", "recv"), ("both",)])
def test_one_aborted_request_may_receive_and_send(order: tuple[str, ...]) -> None:
    """Upstream's engine dies of the second report (vllm #46240)."""
    connector = Scripted(tokens={"a": 16})
    connector.keeps.add("a")
    engine = Engine(connector)
    engine.add("a", range(18))
    engine.step()
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    for each in order:
        assert engine.num_free < 64
        both = each == "both"
        engine.step(
            received=["a"] if both or each == "recv" else [],
            sent=["a"] if both or each == "send" else [],
        )
    assert engine.num_free == 64


def test_reports_about_unknown_requests_are_ignored() -> None:
    engine = Engine(Scripted())
    engine.add("a", range(8))
    engine.step(received=["ghost", "a"], sent=["ghost"], invalid=[63])
    assert engine.requests["a"].num_output_tokens == 1


# ------------------------------------------------------------------ loads that fail


def test_an_asynchronous_load_is_cut_where_it_failed() -> None:
    engine = Engine(Scripted(tokens={"a": 16}))
    a = engine.add("a", range(18))
    engine.step()
    lost = engine.blocks("a")[2]
    engine.step(invalid=[lost])
    assert a.status == WAITS, "the rest may still be written"
    engine.step(received=["a"])
    assert engine.step().num_scheduled_tokens == {"a": 10}
    assert engine.outputs["a"][0].num_cached_tokens == 8, "what did not come is no hit"


def test_a_load_that_failed_whole_asks_again() -> None:
    connector = Scripted(tokens={"a": 16})
    engine = Engine(connector)
    engine.add("a", range(18))
    engine.step()
    engine.step(invalid=engine.blocks("a"), received=["a"])
    plan = engine.step()
    assert plan.num_scheduled_tokens == {"a": 18}
    assert [i for i, _ in connector.asked] == ["a", "a"]


def test_policy_fail_ends_the_request_and_says_why() -> None:
    engine = Engine(Scripted(tokens={"a": 16}), policy="fail")
    engine.add("a", range(18))
    b = engine.add("b", range(50, 58))
    engine.step()
    engine.step(invalid=engine.blocks("a")[1:2])
    assert engine.outputs["a"][-1].finish_reason == "error"
    assert "12 prompt tokens" in str(engine.outputs["a"][-1].failure)
    assert engine.scheduler.held == ["a"]
    engine.step(received=["a"])
    assert engine.num_free == 64 - len(engine.blocks("b"))
    assert b.num_output_tokens == 3


def lossy_engine() -> Engine:
    """100 tokens in blocks of 16, 96 of them loaded at once, in chunks of 16 if computed."""
    connector = Scripted(is_async=False, tokens={"a": 96})
    return Engine(connector, "recompute", block_size=16, long_prefill_token_threshold=16)


def test_lost_blocks_leave_the_prefix_cache() -> None:
    """Upstream keeps them findable until they are computed again, which may take several steps."""
    engine = lossy_engine()
    a = engine.add("a", range(100))
    plan = engine.scheduler.schedule()
    table = engine.blocks("a")
    engine.scheduler.finish_requests((), RequestStatus.FINISHED_ABORTED)
    del plan
    engine = lossy_engine()
    a = engine.add("a", range(100))
    engine.step(invalid=[table[2], table[4]])
    assert a.num_computed_tokens == 32 and a.num_output_tokens == 0
    engine.add("b", range(100))
    plan = engine.step()
    assert plan.rewound == {"a": 100}
    assert plan.num_scheduled_tokens == {"a": 16, "b": 16}, "b finds two sound blocks, and a's new"


def test_every_holder_of_a_lost_block_goes_back() -> None:
    """Upstream lets the second count on the first, which may be aborted before it has computed."""
    connector = Scripted(is_async=False, tokens={"a": 96})
    engine = Engine(connector, block_size=16, long_prefill_token_threshold=16)
    a, b = engine.add("a", range(100)), engine.add("b", range(100))
    lost = 3  # block ids are handed out in order
    plan = engine.step(invalid=[lost])
    assert plan.num_scheduled_tokens == {"a": 4, "b": 4}, "b has found a's blocks in the same step"
    assert (a.num_computed_tokens, b.num_computed_tokens) == (32, 32)
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    for _ in range(4):
        engine.step()
    assert b.num_computed_tokens == 96 and b.num_output_tokens == 0
    engine.step()
    assert b.num_output_tokens == 1


def test_tokens_of_this_step_were_never_to_be_loaded() -> None:
    engine = Engine(Scripted(is_async=False, tokens={"a": 16}))
    a = engine.add("a", range(26))
    engine.step(invalid=[6])  # computed in this step, not loaded
    assert a.num_output_tokens == 1


def test_an_owner_that_is_aborted_leaves_no_garbage_behind() -> None:
    engine = lossy_engine()
    engine.add("a", range(100))
    engine.step(invalid=[3])
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    engine.add("b", range(100))
    assert engine.step().num_scheduled_tokens == {"b": 16}
    assert engine.requests["b"].num_computed_tokens == 48, "two blocks found, one computed"


# ------------------------------------------------------------------ progress


@pytest.mark.parametrize("reserve", [True, False])
def test_a_holder_behind_a_head_that_does_not_fit_goes_first(reserve: bool) -> None:
    """Upstream stands still for ever (vllm #45387)."""
    connector = Scripted(tokens={"a": None, "b": 48})
    engine = Engine(connector, num_gpu_blocks=21, scheduler_reserve_full_isl=reserve)
    a = engine.add("a", range(40))
    b = engine.add("b", range(100, 148))
    engine.step()
    connector.tokens["a"] = 0
    engine.step(received=["b"])
    for _ in range(20):
        engine.step()
    assert b.is_finished and a.is_finished


def test_holders_that_block_each_other_start_anew() -> None:
    connector = Scripted(tokens={"a": 36, "b": 36})
    engine = Engine(connector, num_gpu_blocks=20, scheduler_reserve_full_isl=False)
    requests = [engine.add("a", range(39), 6), engine.add("b", range(100, 139), 6)]
    engine.step()
    engine.step(received=["a", "b"])
    for _ in range(30):
        engine.step()
    assert all(request.is_finished for request in requests)
    assert engine.num_free == 19


def test_what_is_on_its_way_is_progress_and_nothing_is_not() -> None:
    engine = Engine(Scripted(tokens={"a": 16}))
    engine.add("a", range(18))
    for _ in range(3):
        assert not engine.step().num_scheduled_tokens
    stuck = Engine(Scripted(), max_num_batched_tokens=4, enable_chunked_prefill=False)
    stuck.add("a", range(8))
    with pytest.raises(NoProgressError, match="chunked prefill is off"):
        stuck.step()


def test_a_restart_forgets_all_transfers() -> None:
    connector = Scripted(tokens={"a": 16, "b": 16})
    connector.keeps.add("b")
    engine = Engine(connector)
    engine.add("a", range(18))
    engine.add("b", range(50, 66))
    engine.step()
    fresh = Engine(connector).scheduler
    checkpoint = Checkpoint(dict(engine.scheduler.requests))
    restart(engine.scheduler, fresh, checkpoint)
    assert connector.resets == 1
    assert engine.num_free == 64
    plan = engine.step(received=["a"])
    assert plan.num_scheduled_tokens == {"a": 18, "b": 16}, (
        "a report of an earlier request is ignored"
    )
    engine.step()
    assert engine.requests["a"].num_output_tokens == 2


def test_other_schedulers_cannot_wait() -> None:
    for policy in POLICIES.values():
        if "connector" not in policy.supports:
            with pytest.raises(ValueError, match="RemoteKVScheduler"):
                make_scheduler(
                    SchedulerConfig(),
                    CacheConfig(num_gpu_blocks=8),
                    connector=Scripted(),
                    scheduler_cls=policy,
                )


def test_an_offer_of_too_much_is_a_bug_of_the_connector() -> None:
    engine = Engine(Scripted(is_async=False, tokens={"a": 8}))
    engine.add("a", range(8))
    with pytest.raises(AssertionError, match="at most 7"):
        engine.step()


def test_kv_transfer_params_are_the_engines_own_copy() -> None:
    given = {"do_remote_decode": True}
    params = SamplingParams(extra_args={"kv_transfer_params": given})
    engine = Engine(Scripted())
    request = engine.add("a", range(8))
    assert request.kv_transfer_params is None
    from mini_vllm.request import Request

    made = Request("b", [1], params)
    assert made.kv_transfer_params == given and made.kv_transfer_params is not given
