"""The one place that knows which features a scheduler has, and in which order they speak.

Whoever needs a scheduler calls :func:`make_scheduler`: the engine, the replay of traces, the arena,
the tests. It imports no torch, so that a schedule can be computed where no model runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.config import CacheConfig, LoRAConfig, SchedulerConfig
from mini_vllm.config.combinations import ARRIVES, not_yet
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.eagle_kv_cache_manager import EagleKVCacheManager
from mini_vllm.core.encoder_inputs import EncoderInputs
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.hybrid_kv_cache_manager import GroupSteps, HybridKVCacheManager
from mini_vllm.core.kv_cache_manager import KVCacheManager
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
        kv_events: who writes down which blocks become findable, and which no longer are (phase 15).
        use_eagle: drafts come from hidden states, so the last block of a prefix hit is computed
            again (phase 08).
        scheduler_cls: another scheduler; None: :class:`~mini_vllm.core.scheduler.Scheduler`.
        extensions: further ones, asked after those of the features.
        max_concurrent_batches: plans that may be on their way at once; with late results at least
            two.
        groups: what the model's groups of layers remember (phase 18). None, or one that is "full":
            all layers remember everything, and one block table holds it.

    Raises:
        ValueError: for a feature that is not there yet, naming the phase that brings it; for a
            connector with a scheduler that cannot wait for it; for events with a scheduler that has
            a KV cache manager of its own.
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
    steps = None
    if len(groups) > 1 or any(group.kind != "full" for group in groups):
        steps = GroupSteps(groups)
        features.append(steps)
    made_of = (scheduler_config, cache_config, (*features, *extensions), hash_root)
    cls = scheduler_cls or Scheduler
    if connector is None:
        scheduler = cls(*made_of)
    else:
        scheduler = _remote_scheduler(cls)(
            *made_of, connector=connector, kv_load_failure_policy=kv_load_failure_policy
        )
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
            scheduler, groups, [part.__name__ for part, is_on in parts.items() if is_on], hash_root
        )
    elif any(parts.values()):
        manager = scheduler.kv_cache_manager = _make_manager(scheduler, parts, hash_root)
        if kv_events is not None and isinstance(manager, KVEventManager):
            kv_events.watch(manager)
    return scheduler


def _hybrid_manager(
    scheduler: Scheduler,
    groups: Sequence[GroupSpec],
    others: Sequence[str],
    hash_root: bytes | None,
) -> HybridKVCacheManager:
    """The manager of several groups, in the place of the plain one."""
    plain = scheduler.kv_cache_manager
    if others or type(plain) is not KVCacheManager:
        raise ValueError(
            f"layers that remember differently ({len(groups)} groups) do not go with "
            f"{', '.join(others) or type(plain).__name__}; leave that feature out, or choose a "
            "model whose layers all remember everything"
        )
    if groups[0].block_size != plain.block_size:
        raise ValueError(
            f"block_size is {plain.block_size}; it must be that of group 0, "
            f"{groups[0].block_size}; set cache_config.block_size so"
        )
    return HybridKVCacheManager(
        groups,
        plain.block_pool.num_gpu_blocks,
        scheduler.max_model_len,
        scheduler.scheduler_config.max_num_batched_tokens,
        plain.enable_caching,
        hash_root,
    )


def _remote_scheduler(wanted: type[Scheduler]) -> type[RemoteKVScheduler]:
    if issubclass(wanted, RemoteKVScheduler):
        return wanted
    if wanted is not Scheduler:
        raise ValueError(
            f"scheduler_cls is {wanted.__name__}, which knows nothing of KV that is on its way; "
            "derive it from mini_vllm.kv_transfer.scheduler.RemoteKVScheduler, or leave "
            "kv_transfer_config out"
        )
    return RemoteKVScheduler


def _make_manager(scheduler: Scheduler, parts: Mapping[type, bool], hash_root: bytes | None) -> Any:
    """A KV cache manager with what the features add to it, in the place of the plain one."""
    bases = tuple(part for part, is_on in parts.items() if is_on)
    manager = scheduler.kv_cache_manager
    if type(manager) is not KVCacheManager:
        raise ValueError(
            f"scheduler_cls is {type(scheduler).__name__}, which shares out blocks with a "
            f"{type(manager).__name__} of its own; use another, or leave kv_events_config out"
        )
    return type("FeatureKVCacheManager", bases, {})(
        manager.block_pool.num_gpu_blocks,
        manager.block_size,
        scheduler.max_model_len,
        manager.enable_caching,
        hash_root,
    )
