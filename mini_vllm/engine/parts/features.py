"""The one place that says which features a scheduler has, and in which order they act.

All that need a scheduler call :func:`make_scheduler`: the engine, the replay of traces, the arena,
the tests. It imports no torch, so that a schedule can be computed where no model runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.config import CacheConfig, LoRAConfig, SchedulerConfig
from mini_vllm.config.profiles import PROFILES
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.eagle_kv_cache_manager import EagleKVCacheManager
from mini_vllm.core.encoder_inputs import EncoderInputs
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.hybrid_kv_cache_manager import GroupSteps, HybridKVCacheManager
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.padded_drafts import PaddedDrafts
from mini_vllm.core.profile_rules import pool_for
from mini_vllm.core.retention import RetainingKVCacheManager, RetainingSteps
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.kv_transfer.events import KVEventLog, KVEventManager
from mini_vllm.kv_transfer.remote_kv import RemoteKVCacheManager
from mini_vllm.kv_transfer.scheduler import RemoteKVScheduler
from mini_vllm.lora.scheduling import LoRASchedulerExtension


def make_scheduler(
    scheduler_config: SchedulerConfig,
    cache_config: CacheConfig,
    *,
    lora: LoRAConfig | None = None,
    structured: SchedulerExtension | None = None,
    connector: Any = None,
    kv_load_failure_policy: str = "recompute",
    kv_events: KVEventLog | None = None,
    use_eagle: bool = False,
    num_speculative_tokens: int = 0,
    hash_root: bytes | None = None,
    scheduler_cls: type[Scheduler] | None = None,
    extensions: Sequence[SchedulerExtension] = (),
    max_concurrent_batches: int = 1,
    groups: Sequence[GroupSpec] = (),
) -> Scheduler:
    """Build a scheduler with the extensions of the features that are switched on.

    Args:
        scheduler_config, cache_config, hash_root: see :class:`~mini_vllm.core.scheduler.Scheduler`.
            With ``encoder_cache_size`` requests may have images (phase 13).
        lora: limits of the adapters that a step may hold (phase 11).
        structured: the manager of compiled grammars (phase 12).
        connector: the scheduler's half of a KV connector (phase 15).
        kv_load_failure_policy: "recompute" or "fail" requests whose KV does not arrive.
        kv_events: writes down which blocks become findable, and which no longer are (phase 15).
        use_eagle: drafts come from hidden states, so the last block of a prefix hit is computed
            again (phase 08).
        num_speculative_tokens: drafts that a request may have in a step (phase 08).
        scheduler_cls: another scheduler; None: :class:`~mini_vllm.core.scheduler.Scheduler`.
        extensions: further ones, asked after those of the features.
        max_concurrent_batches: plans that may be on their way at once; with late results at least
            two.
        groups: what the model's groups of layers remember (phase 18). None, or one that is "full":
            all layers remember everything, and one block table holds it.

    Raises:
        ValueError: for a connector with a scheduler that cannot wait for it; for events with a
            scheduler that has a KV cache manager of its own.
    """
    features: list[SchedulerExtension] = []  # adapters, grammars, images: a fixed order
    if lora is not None:
        features.append(LoRASchedulerExtension(lora))
    if structured is not None:
        features.append(structured)
    images = None
    if scheduler_config.encoder_cache_size is not None:
        images = EncoderInputs(scheduler_config)
        features.append(images)
    steps = None
    if len(groups) > 1 or any(group.kind != "full" for group in groups):
        steps = _group_steps(groups, scheduler_config, cache_config)
        features.append(steps)
    padding = None
    if num_speculative_tokens and scheduler_config.rules.first_decode_padded:
        padding = PaddedDrafts()
        features.append(padding)
    made_of = (scheduler_config, cache_config, (*features, *extensions), hash_root)
    cls = scheduler_cls or Scheduler
    if connector is None:
        scheduler = cls(*made_of)
    else:
        scheduler = _remote_scheduler(cls)(
            *made_of, connector=connector, kv_load_failure_policy=kv_load_failure_policy
        )
    scheduler.num_speculative_tokens = num_speculative_tokens
    if padding is not None:
        padding.scheduler = scheduler
    if images is not None:
        scheduler.encoder_cache_manager = images.manager
    scheduler.max_concurrent_batches = max(scheduler.max_concurrent_batches, max_concurrent_batches)
    parts = {
        KVEventManager: kv_events is not None,
        RemoteKVCacheManager: connector is not None,
        EagleKVCacheManager: use_eagle,
    }
    if steps is not None:
        steps.manager = scheduler.kv_cache_manager = _hybrid_manager(
            scheduler, steps, [part.__name__ for part, is_on in parts.items() if is_on], hash_root
        )
    elif any(parts.values()):
        manager = scheduler.kv_cache_manager = _make_manager(scheduler, hash_root)
        manager.use_eagle = use_eagle
        if kv_events is not None:
            kv_events.watch(manager)
    return scheduler


class FeatureKVCacheManager(KVEventManager, RemoteKVCacheManager, EagleKVCacheManager):
    """A manager with what each feature adds. Without a log it writes no events down; without a
    connector no block is given before its contents; ``use_eagle`` is asked at each hit."""


def _hybrid_manager(
    scheduler: Scheduler,
    steps: GroupSteps,
    others: Sequence[str],
    hash_root: bytes | None,
) -> HybridKVCacheManager:
    """The manager of several groups, in the place of the plain one."""
    plain, groups = scheduler.kv_cache_manager, steps.groups
    if others or type(plain) is not KVCacheManager:
        raise ValueError(
            f"layers with different KV caches ({len(groups)} groups) do not go with "
            f"{', '.join(others) or type(plain).__name__}; leave that feature out, or choose a "
            "model whose layers all keep the KV of the whole text"
        )
    if groups[0].block_size != plain.block_size:
        raise ValueError(
            f"block_size is {plain.block_size}; it must be that of group 0, "
            f"{groups[0].block_size}; set cache_config.block_size to it"
        )
    config, rules = scheduler.scheduler_config, scheduler.rules
    num_plans = scheduler.max_concurrent_batches if rules.windows_outlast_late_tokens else 1
    arguments = (
        groups,
        plain.block_pool.num_gpu_blocks,
        scheduler.max_model_len,
        config.max_num_batched_tokens * num_plans,
        plain.enable_caching,
        hash_root,
        rules,
    )
    if isinstance(steps, RetainingSteps):
        chosen = scheduler.cache_config.prefix_cache_retention_interval
        interval = rules.retention_interval if chosen is None else chosen
        return RetainingKVCacheManager(*arguments, retention_interval=interval)
    return HybridKVCacheManager(*arguments)


def _group_steps(
    groups: Sequence[GroupSpec], config: SchedulerConfig, cache_config: CacheConfig
) -> GroupSteps:
    """What a plan of several groups needs, and by its class: whether all blocks are kept."""
    chosen = cache_config.prefix_cache_retention_interval
    if chosen is None and config.rules == PROFILES["v0.22"]:
        return GroupSteps(groups)
    most = config.max_num_batched_tokens
    return RetainingSteps(groups, min(config.long_prefill_token_threshold or most, most))


def _remote_scheduler(wanted: type[Scheduler]) -> type[RemoteKVScheduler]:
    if issubclass(wanted, RemoteKVScheduler):
        return wanted
    if wanted is not Scheduler:
        raise ValueError(
            f"scheduler_cls is {wanted.__name__}, which cannot wait for KV that is transferred; "
            "derive it from mini_vllm.kv_transfer.scheduler.RemoteKVScheduler, or leave "
            "kv_transfer_config out"
        )
    return RemoteKVScheduler


def _make_manager(scheduler: Scheduler, hash_root: bytes | None) -> FeatureKVCacheManager:
    """A KV cache manager with what the features add to it, in the place of the plain one."""
    manager = scheduler.kv_cache_manager
    if type(manager) is not KVCacheManager:
        raise ValueError(
            f"scheduler_cls is {type(scheduler).__name__}, which allocates blocks with a "
            f"{type(manager).__name__} of its own; use another, or leave kv_events_config out"
        )
    made = FeatureKVCacheManager(
        manager.block_pool.num_gpu_blocks,
        manager.block_size,
        scheduler.max_model_len,
        manager.enable_caching,
        hash_root,
    )
    plain: KVCacheManager = made
    plain.block_pool = pool_for(scheduler.scheduler_config.rules, made.block_pool)
    return made
