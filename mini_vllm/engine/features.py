"""The one place that knows which features a scheduler has, and in which order they speak.

Whoever needs a scheduler calls :func:`make_scheduler`: the engine, the replay of traces, the arena,
the tests. It imports no torch, so that a schedule can be computed where no model runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.config import CacheConfig, LoRAConfig, SchedulerConfig
from mini_vllm.config.combinations import ARRIVES, not_yet
from mini_vllm.core.eagle_kv_cache_manager import EagleKVCacheManager
from mini_vllm.core.encoder_inputs import EncoderInputs
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.lora.scheduling import LoRASchedulerExtension


def make_scheduler(
    scheduler_config: SchedulerConfig,
    cache_config: CacheConfig,
    *,
    lora: LoRAConfig | None = None,
    structured: SchedulerExtension | None = None,
    connector: Any = None,
    kv_load_failure_policy: str = "recompute",
    use_eagle: bool = False,
    hash_root: bytes | None = None,
    scheduler_cls: type[Scheduler] | None = None,
    extensions: Sequence[SchedulerExtension] = (),
) -> Scheduler:
    """Build a scheduler with the extensions of the features that are switched on.

    Args:
        scheduler_config, cache_config, hash_root: see :class:`~mini_vllm.core.scheduler.Scheduler`.
            With ``encoder_cache_size`` requests may have images (phase 13).
        lora: limits of the adapters that a step may hold (phase 11).
        structured: the manager of compiled grammars (phase 12).
        connector: the scheduler's half of a KV connector (phase 15).
        kv_load_failure_policy: "recompute" or "fail" requests whose KV does not arrive.
        use_eagle: drafts come from hidden states, so the last block of a prefix hit is computed
            again (phase 08).
        scheduler_cls: another scheduler; None: :class:`~mini_vllm.core.scheduler.Scheduler`.
        extensions: further ones, asked after those of the features.

    Raises:
        ValueError: for a feature that is not there yet, naming the phase that brings it.
    """
    features: list[SchedulerExtension] = []  # adapters, grammars, images: a fixed order
    wanted = {
        "enable_lora": lora,
        "structured_outputs_config": structured,
        "kv_transfer_config": connector,
    }
    for name, feature in wanted.items():
        if feature is not None and name in ARRIVES:
            raise not_yet(name, ARRIVES[name])
    if lora is not None:
        features.append(LoRASchedulerExtension(lora))
    if structured is not None:
        features.append(structured)
    images = None
    if scheduler_config.encoder_cache_size is not None:
        images = EncoderInputs(scheduler_config)
        features.append(images)
    scheduler = (scheduler_cls or Scheduler)(
        scheduler_config, cache_config, (*features, *extensions), hash_root
    )
    if images is not None:
        scheduler.encoder_cache_manager = images.manager
    if use_eagle:
        manager = scheduler.kv_cache_manager
        scheduler.kv_cache_manager = EagleKVCacheManager(
            manager.block_pool.num_gpu_blocks,
            manager.block_size,
            scheduler_config.max_model_len,
            cache_config.enable_prefix_caching,
            hash_root,
        )
    return scheduler
