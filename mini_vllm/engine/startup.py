"""The engine's start: make the workers ready in order, settle the limits, and log them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mini_vllm.config import EngineConfig
from mini_vllm.core.cache_groups import GroupSpec, longest_sequence
from mini_vllm.executor.base import Executor
from mini_vllm.model.config import ModelArgs
from mini_vllm.worker.capacity import requests_that_fit

logger = logging.getLogger(__name__)


def make_ready(
    executor: Executor, config: EngineConfig
) -> tuple[EngineConfig, tuple[GroupSpec, ...]]:
    """Load the model on all workers, and give each its KV cache.

    Block ids are the engine's, so the rank with the least memory decides how many there are.

    Returns:
        The configuration with the number of blocks, their size, and the length that these allow;
        and the cache specs of the groups of layers that share the blocks.

    Raises:
        ValueError: from a worker, about the model or the memory. The workers have ended then.
    """
    try:
        executor.call("init_device")
        executor.call("load_model")
        wanted = config.scheduler.max_model_len
        groups = executor.call("cache_groups")[0]
        config = with_blocks(config, min(executor.call("num_blocks_that_fit")), groups)
        cache, limits = config.cache, config.scheduler
        if limits.max_model_len < wanted:
            logger.info(
                "max_model_len is %d in place of %d, because the KV cache holds no more; to change "
                "that, %s",
                limits.max_model_len,
                wanted,
                executor.call("how_to_hold", wanted)[0],
            )
        executor.call("initialize", cache.num_gpu_blocks, limits.max_model_len)
        executor.call("warm_up")
    except BaseException:
        executor.shutdown()
        raise
    return config, groups


def with_blocks(
    config: EngineConfig, num_blocks: int, groups: Sequence[GroupSpec] = ()
) -> EngineConfig:
    """The configuration for a pool of so many blocks. A length that was left open becomes the
    longest that one request can have there.

    Args:
        groups: the cache specs of the groups that share the pool; (): one table with all tokens.

    Source: vllm/v1/core/kv_cache_utils.py#L1839-L1900 (_auto_fit_max_model_len) @ v0.22.1
    """
    groups = groups or [GroupSpec("full", config.cache.block_size)]
    limits = config.scheduler
    length = longest_sequence(
        groups, num_blocks - 1, limits.max_num_batched_tokens, limits.max_model_len
    )
    return with_limits(config, num_blocks, groups[0].block_size, length)


def with_limits(
    config: EngineConfig, num_blocks: int, block_size: int, longest: int
) -> EngineConfig:
    """The configuration with the blocks that there are, and the length that they allow if that
    was left open."""
    cache = replace(config.cache, num_gpu_blocks=num_blocks, block_size=block_size)
    limits = config.scheduler
    if config.fits_max_model_len:
        limits = replace(limits, max_model_len=min(longest, limits.max_model_len))
    return replace(config, cache=cache, scheduler=limits)


def say_limits(
    config: EngineConfig,
    groups: Sequence[GroupSpec],
    args: ModelArgs,
    seconds: float,
    replica: int = 0,
) -> None:
    """The limits that the engine runs with, in one line."""
    cache, limits = config.cache, config.scheduler
    assert cache.num_gpu_blocks is not None
    num_blocks, most = cache.num_gpu_blocks - 1, args.max_position_embeddings
    several = config.parallel.data_parallel_size > 1
    logger.info(
        "%s is ready after %.1f s%s: max_model_len=%d of %d positions, %d KV blocks of %d tokens "
        "(%d tokens), max_num_batched_tokens=%d, max_num_seqs=%d",
        Path(config.model.model).name,
        seconds,
        f" (engine {replica})" if several else "",
        limits.max_model_len,
        most,
        num_blocks,
        cache.block_size,
        num_blocks // len(groups) * cache.block_size,
        limits.max_num_batched_tokens,
        limits.max_num_seqs,
    )
    if [group.kind for group in groups] == ["full"]:
        fit = requests_that_fit(cache.num_gpu_blocks, cache.block_size, limits.max_model_len)
        logger.info("%d requests of max_model_len=%d fit at a time", fit, limits.max_model_len)
