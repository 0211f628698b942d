"""Which windows and states stay findable, and where chunks end for them. That all decisions are
vLLM 0.32's is shown by its recordings; here stand the rules, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.finish_step import finish_step
from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager
from mini_vllm.core.retention import RetainingKVCacheManager
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import ModelRunnerOutput
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

FULL = GroupSpec("full", 2)
WINDOW = GroupSpec("sliding_window", 2, window=4)
STATE = GroupSpec("mamba", 2, mode="align")


def make(*groups: GroupSpec, profile: Any = "current", interval: int | None = None) -> Scheduler:
    return make_scheduler(
        SchedulerConfig(
            max_num_batched_tokens=64, max_num_seqs=4, max_model_len=64, profile=profile
        ),
        CacheConfig(
            block_size=2, num_gpu_blocks=90, prefix_cache_retention_interval=interval
        ),
        groups=groups,
    )  # fmt: skip


def run(scheduler: Scheduler, name: str, tokens: list[int], max_tokens: int = 1) -> list[int]:
    """Run one request to its end; the tokens that each of its steps computes."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    request = Request(name, tokens, params)
    scheduler.add_request(request)
    counts = []
    while scheduler.requests:
        plan = scheduler.schedule()
        counts.append(plan.num_scheduled_tokens[name])
        done = request.num_computed_tokens >= request.num_tokens
        finish_step(scheduler, plan, ModelRunnerOutput({name: [7]} if done else {}))
    scheduler.kv_cache_manager.check_integrity()
    return counts


def findable(scheduler: Scheduler, tokens: list[int], group: int) -> list[int]:
    """Places of the blocks of a text that a group still has."""
    manager = scheduler.kv_cache_manager
    assert isinstance(manager, HybridKVCacheManager)
    request = Request("look", tokens, SamplingParams())
    request.set_block_hasher(manager.block_hasher)
    one = manager.managers[group]
    return [i for i in range(len(tokens) // 2) if one.look_up(request, i, [group]) is not None]


TEXT = list(range(11)) + [7] * 5


@pytest.mark.parametrize(
    ("profile", "interval", "kept"),
    [
        ("v0.22", None, [0, 1, 2, 3, 4, 5, 6]),
        ("v0.22", 0, [3, 4]),
        ("current", None, [3, 4]),
        ("current", 8, [2, 3, 4, 6]),
    ],
)
def test_windows_are_kept_where_the_prompt_can_begin_again_and_at_intervals(
    profile: str, interval: int | None, kept: list[int]
) -> None:
    """A prompt of 11 tokens, an answer of 5 of which the last is never computed: 7 full blocks."""
    scheduler = make(FULL, WINDOW, profile=profile, interval=interval)
    run(scheduler, "ana", TEXT[:11], max_tokens=5)
    assert findable(scheduler, TEXT, 0) == [0, 1, 2, 3, 4, 5, 6]
    assert findable(scheduler, TEXT, 1) == kept
    assert run(scheduler, "ben", TEXT[:11]) == [1]


def test_the_end_of_a_shared_prefix_is_kept_once_a_lookup_has_shown_it() -> None:
    """ana and ben share 6 tokens. ben finds no window at 6 and computes all; cleo finds one."""
    scheduler = make(FULL, WINDOW)
    shared = [50, 51, 52, 53, 54, 55]
    counts = [
        run(scheduler, name, shared + [first] * 6)
        for name, first in (("ana", 1), ("ben", 2), ("cleo", 3))
    ]
    assert counts == [[12], [12], [6]]
    assert isinstance(scheduler.kv_cache_manager, RetainingKVCacheManager)
    assert scheduler.kv_cache_manager.junctions == {}


def test_the_last_state_ends_before_the_last_token() -> None:
    """With it the same prompt computes two tokens, and not all of its eight."""
    pin, newer = make(FULL, STATE, profile="v0.22"), make(FULL, STATE)
    assert [run(pin, name, list(range(8))) for name in ("ana", "ben")] == [[8], [8]]
    assert [run(newer, name, list(range(8))) for name in ("ana", "ben")] == [[6, 2], [2]]


def test_an_interval_must_end_a_block_of_every_group() -> None:
    with pytest.raises(ValueError, match="interval is 3; it must be a multiple of 2"):
        make(FULL, WINDOW, interval=3)
