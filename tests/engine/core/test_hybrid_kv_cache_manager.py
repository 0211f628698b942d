"""Several groups of layers over one pool. That all decisions are vLLM's is shown by the golden
traces of the profile "hybrid"; here stand the rules, one by one, and what is refused."""

from __future__ import annotations

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.finish_step import finish_step
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

FULL = GroupSpec("full", 4)
WINDOW = GroupSpec("sliding_window", 4, window=5)
STATE = GroupSpec("mamba", 4, mode="align")


def make(*groups: GroupSpec, blocks: int = 40, budget: int = 64) -> Scheduler:
    return make_scheduler(
        SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=4, max_model_len=64),
        CacheConfig(block_size=groups[0].block_size, num_gpu_blocks=blocks),
        groups=groups,
    )


def add(scheduler: Scheduler, name: str, num_tokens: int, max_tokens: int = 30) -> None:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    scheduler.add_request(Request(name, range(num_tokens), params))


def step(scheduler: Scheduler) -> SchedulerOutput:
    plan = scheduler.schedule()
    due = {
        name: [7]
        for name in plan.num_scheduled_tokens
        if scheduler.requests[name].num_computed_tokens >= scheduler.requests[name].num_tokens
    }
    finish_step(scheduler, plan, ModelRunnerOutput(due))
    scheduler.check_integrity()
    return plan


def tables(scheduler: Scheduler, name: str) -> list[list[int]]:
    manager = scheduler.kv_cache_manager
    assert isinstance(manager, HybridKVCacheManager)
    return manager.get_group_block_ids(name)


def test_one_group_that_remembers_everything_is_the_plain_manager() -> None:
    assert type(make(FULL).kv_cache_manager) is KVCacheManager


def test_a_window_frees_the_blocks_it_no_longer_reads() -> None:
    scheduler = make(FULL, WINDOW)
    add(scheduler, "a", 10)
    plan = step(scheduler)
    assert (plan.new_block_ids["a"], plan.group_block_ids["a"]) == ([1, 2, 3], [[4, 5, 6]])
    step(scheduler)  # token 10 reads 6 to 10: block 0, tokens 0 to 3, is read no more
    assert tables(scheduler, "a") == [[1, 2, 3], [0, 5, 6]]
    assert 4 in {block.block_id for block in scheduler.kv_cache_manager.block_pool.free_block_queue}


def test_a_state_moves_into_a_new_block_and_the_old_one_goes() -> None:
    scheduler = make(FULL, STATE)
    add(scheduler, "a", 10)
    assert step(scheduler).num_scheduled_tokens == {"a": 8}, "a chunk ends at a whole block"
    plan = step(scheduler)
    assert plan.num_scheduled_tokens == {"a": 2}
    old, new = tables(scheduler, "a")[1][1:]
    assert plan.blocks_to_copy == [(old, new)]
    step(scheduler)
    assert tables(scheduler, "a")[1] == [0, 0, new]


def test_a_prefix_hits_as_far_as_every_group_has_it() -> None:
    scheduler = make(FULL, STATE)
    add(scheduler, "a", 10, max_tokens=1)
    step(scheduler), step(scheduler)
    hits, num_tokens = scheduler.kv_cache_manager.get_computed_blocks(_known(scheduler, 9))
    assert num_tokens == 8 and [len(ids) for ids in hits.get_group_block_ids()] == [2, 2]  # type: ignore[attr-defined]
    _, num_tokens = scheduler.kv_cache_manager.get_computed_blocks(_known(scheduler, 8))
    assert num_tokens == 0, "the state at 8 is there, that at 4 never was"


def _known(scheduler: Scheduler, num_tokens: int) -> Request:
    request = Request("b", range(num_tokens))
    request.set_block_hasher(scheduler.kv_cache_manager.block_hasher)
    return request


def test_windows_hold_longer_sequences_than_the_pool_has_slots() -> None:
    manager = make(GroupSpec("sliding_window", 4, window=5), blocks=6, budget=8).kv_cache_manager
    assert manager.block_pool.num_usable_blocks * 4 == 20
    assert manager.capacity_in_tokens == 64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("ring", 4), "kind is 'ring'; it must be one of full, sliding_window"),
        (("full", 0), "block_size is 0; it must be at least 1"),
        (("sliding_window", 4), "window is 0; it must be at least 1; a token reads at least"),
        (("chunked_local", 4), "chunk is 0; it must be at least 1"),
        (("mamba", 4, 0, 0, "some"), "mode is 'some'; it must be one of none, align, all"),
    ],
)
def test_a_group_that_cannot_be_says_why(values: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupSpec(*values)


def test_what_does_not_go_with_groups_is_refused_by_name() -> None:
    configs = SchedulerConfig(), CacheConfig(block_size=4, num_gpu_blocks=9)
    with pytest.raises(ValueError, match=r"2 groups\) do not go with EagleKVCacheManager"):
        make_scheduler(*configs, groups=(FULL, WINDOW), use_eagle=True)
    with pytest.raises(ValueError, match="block_size is 4; it must be that of group 0, 8"):
        make_scheduler(*configs, groups=(GroupSpec("full", 8), WINDOW))
