"""Configurations are checked when they are made: value, limit and fix in every message."""

from __future__ import annotations

import dataclasses

import pytest

from mini_vllm.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler


def test_defaults() -> None:
    scheduler, cache = SchedulerConfig(), CacheConfig()
    assert (scheduler.max_num_batched_tokens, scheduler.max_num_seqs) == (2048, 128)
    assert scheduler.max_model_len == 2048 and scheduler.policy == "fcfs"
    assert scheduler.enable_chunked_prefill and scheduler.scheduler_reserve_full_isl
    assert scheduler.long_prefill_token_threshold == scheduler.num_lookahead_tokens == 0
    assert cache.block_size == 16 and cache.enable_prefix_caching
    assert cache.num_gpu_blocks is None
    engine = EngineConfig(ModelConfig("some-model"))
    assert engine.scheduler == scheduler and engine.cache == cache


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "max_num_seqs", "max_model_len"])
@pytest.mark.parametrize("value", [0, -3, 1.5, True, "8", None])
def test_scheduler_limits_are_whole_numbers_from_one(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; it must be .*; "):
        SchedulerConfig(**{name: value})  # type: ignore[arg-type]
    SchedulerConfig(**{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["long_prefill_token_threshold", "num_lookahead_tokens"])
def test_switches_with_a_number_accept_zero(name: str) -> None:
    SchedulerConfig(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"{name} is -1; it must be at least 0"):
        SchedulerConfig(**{name: -1})  # type: ignore[arg-type]


def test_unknown_policy() -> None:
    with pytest.raises(ValueError, match="policy is 'lifo'; it must be one of fcfs, priority"):
        SchedulerConfig(policy="lifo")  # type: ignore[arg-type]


def test_cache_limits() -> None:
    CacheConfig(block_size=1, num_gpu_blocks=2, gpu_memory_utilization=1.0)
    with pytest.raises(ValueError, match="block_size is 0; it must be at least 1"):
        CacheConfig(block_size=0)
    with pytest.raises(ValueError, match="num_gpu_blocks is 1; it must be at least 2; block 0"):
        CacheConfig(num_gpu_blocks=1)
    for share in (0.0, -0.5, 1.01):
        with pytest.raises(ValueError, match=f"gpu_memory_utilization is {share}"):
            CacheConfig(gpu_memory_utilization=share)


def test_model_names() -> None:
    with pytest.raises(ValueError, match="dtype is 'float8'; it must be one of auto, float32"):
        ModelConfig("m", dtype="float8")
    with pytest.raises(ValueError, match="load_format is 'gguf'"):
        ModelConfig("m", load_format="gguf")


def test_configs_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SchedulerConfig().max_num_seqs = 3  # type: ignore[misc]


def test_a_scheduler_needs_to_know_its_pool() -> None:
    with pytest.raises(ValueError, match="num_gpu_blocks is None; pass a number"):
        Scheduler(SchedulerConfig(), CacheConfig())
