"""Late results in the scheduler: a step is planned before the tokens of the one before are known.

That it decides as vLLM's `AsyncScheduler` does is seen in `tests/conformance`. Here is what can be
counted by hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.finish_step import finish_step
from mini_vllm.core.interface import NoProgressError
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import ModelRunnerOutput
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.mm_features import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


def scheduler(is_async: bool = True, num_gpu_blocks: int = 20, **limits: Any) -> Scheduler:
    config = SchedulerConfig(max_model_len=64, async_scheduling=is_async, **limits)
    return make_scheduler(config, CacheConfig(num_gpu_blocks=num_gpu_blocks, block_size=4))


def request(name: str, length: int = 3, max_tokens: int = 4, **fields: Any) -> Request:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, **fields)
    return Request(name, range(100, 100 + length), params, eos_token_id=2)


def test_a_token_is_scheduled_before_its_input_is_sampled() -> None:
    late = scheduler()
    r0 = request("r0")
    late.add_request(r0)
    first = late.schedule()
    assert (r0.num_computed_tokens, r0.num_output_placeholders) == (3, 1)
    second = late.schedule()
    assert second.num_scheduled_tokens == {"r0": 1}
    assert second.scheduled_cached_reqs.num_computed_tokens == [3]
    assert (r0.num_computed_tokens, r0.num_output_placeholders) == (4, 2)
    late.check_integrity()
    late.update_from_output(first, {"r0": [7]})
    assert (r0.output_token_ids, r0.num_output_placeholders) == ([7], 1)


def test_with_one_plan_at_a_time_there_is_no_placeholder_when_a_step_is_planned() -> None:
    for is_async in (False, True):
        one = scheduler(is_async)
        r0 = request("r0")
        one.add_request(r0)
        while one.has_unfinished_requests():
            assert r0.num_output_placeholders == 0
            one.update_from_output(one.schedule(), {"r0": [7]})
        assert r0.output_token_ids == [7] * 4


def test_without_late_results_a_request_waits_for_its_token() -> None:
    """As in a pipeline, whose first stage does not know the token either."""
    in_time = scheduler(is_async=False)
    in_time.add_request(request("r0"))
    in_time.schedule()
    assert in_time.schedule().num_scheduled_tokens == {}


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_the_last_permitted_token_is_sampled_and_never_computed(max_tokens: int) -> None:
    late = scheduler()
    r0 = request("r0", max_tokens=max_tokens)
    late.add_request(r0)
    plans = [late.schedule()]
    for _ in range(max_tokens + 1):
        plans.append(late.schedule())
        due = plans[-2]
        late.update_from_output(due, {"r0": [7]} if due.num_scheduled_tokens else {})
    assert r0.is_finished and len(r0.output_token_ids) == max_tokens
    assert sum(sum(plan.num_scheduled_tokens.values()) for plan in plans) == 3 + max_tokens - 1


def test_an_unforeseen_end_costs_one_token_that_is_dropped() -> None:
    late = scheduler()
    late.add_request(request("r0"))
    first, second = late.schedule(), late.schedule()
    (output,) = late.update_from_output(first, {"r0": [2]})
    assert output.finish_reason == "stop"
    assert late.update_from_output(second, {"r0": [9]}) == []
    assert late.kv_cache_manager.num_free_blocks == 19


def test_a_token_arrives_for_a_request_that_was_preempted_meanwhile() -> None:
    late = scheduler(num_gpu_blocks=3, max_num_seqs=2)
    r0, r1 = request("r0", length=4, max_tokens=3), request("r1", length=3, max_tokens=3)
    late.add_request(r0)
    late.add_request(r1)
    first = late.schedule()
    second = late.schedule()  # r0 needs a second block, and r1 has to go
    assert second.preempted_req_ids == ["r1"]
    late.update_from_output(first, {"r0": [7], "r1": [8]})
    assert r1.output_token_ids == [8] and r1.num_output_placeholders == 0
    late.check_integrity()


def test_a_block_is_found_once_its_tokens_are_known() -> None:
    """Also that of a request which ends: published before its blocks are free."""
    late = scheduler()
    late.add_request(request("r0", length=3, max_tokens=2))
    first = late.schedule()
    second = late.schedule()  # computes the fourth token, which is not sampled yet
    late.update_from_output(first, {"r0": [7]})
    late.update_from_output(second, {"r0": [8]})
    again = Request("r1", [100, 101, 102, 7, 9], SamplingParams(temperature=0))
    late.add_request(again)
    late.schedule()
    assert again.num_cached_tokens == 4


def test_an_empty_plan_is_no_dead_end_while_another_is_on_its_way() -> None:
    """The second image finds room when the step that computes the first has been taken in."""
    images = [
        MultiModalFeatureSpec(None, "image", name, PlaceholderRange(offset, 4))
        for name, offset in (("i0", 0), ("i1", 4))
    ]
    config = SchedulerConfig(
        max_model_len=64, async_scheduling=True, encoder_cache_size=4, max_num_batched_tokens=4
    )
    late = make_scheduler(config, CacheConfig(num_gpu_blocks=20, block_size=4))
    late.add_request(
        Request("r0", range(8), SamplingParams(temperature=0, max_tokens=1), mm_features=images)
    )
    first, empty = late.schedule(), late.schedule()
    assert (first.num_scheduled_tokens, empty.num_scheduled_tokens) == ({"r0": 4}, {})
    finish_step(late, first, ModelRunnerOutput())
    assert late.schedule().num_scheduled_tokens == {"r0": 4}


def test_two_empty_plans_in_a_row_are_a_dead_end() -> None:
    late = scheduler(max_num_batched_tokens=4)
    r0 = request("r0", length=3)
    late.add_request(r0)
    late.kv_cache_manager.block_pool.get_new_blocks(19)  # taken from outside, all of them
    assert late.schedule().num_scheduled_tokens == {}
    with pytest.raises(NoProgressError, match="is not admitted"):
        late.schedule()
