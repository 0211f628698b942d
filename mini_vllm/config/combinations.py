"""Which features cannot be combined. All other combinations work.

`tests/engine/whole/test_combinations.py` tests random combinations of those that are allowed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mini_vllm.config.engine import EngineConfig
from mini_vllm.config.speculative import METHODS_WITH_KV
from mini_vllm.config.structured import StructuredOutputsConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Situation:
    """A configuration, and what the model and the scheduler support."""

    config: EngineConfig
    model: frozenset[str]
    """`supports` of the model's class."""
    scheduler: frozenset[str]
    """`supports` of the scheduler's class."""


ASYNC = "async_scheduling"
STATES = "layers that keep a state"
LATENTS = "layers that keep latents"
UNQUANTISED = ("auto", "float32", "bfloat16", "float16")
ONE_TABLE = {
    "speculative_config": "a rejected draft cannot be removed from a state",
    "kv_transfer_config": "a connector carries keys and values by the blocks of one table",
    "kv_events_config": "events describe the blocks of one table",
    "pipeline_parallel_size > 1": "the groups of layers would differ from stage to stage",
    "a scheduler without groups": "scheduler_cls shares out the blocks of one table",
}
"""Features that need one block table for all layers, and why layers with states cannot have one.
Layers with a window can: they then keep the KV of the whole text."""
POOLS = "runner='pooling'"
NOTHING_SAMPLED = "a pooled prompt is followed by no token"

FEATURES: dict[str, Callable[[Situation], bool]] = {
    "speculative_config": lambda s: s.config.speculative is not None,
    "logits_processors": lambda s: bool(s.config.model.logits_processors),
    "tensor_parallel_size > 1": lambda s: s.config.parallel.tensor_parallel_size > 1,
    "pipeline_parallel_size > 1": lambda s: s.config.parallel.pipeline_parallel_size > 1,
    'distributed_executor_backend="uni"': lambda s: s.config.parallel.backend == "uni",
    "more than one worker": lambda s: s.config.parallel.num_workers > 1,
    "workers in processes of their own": lambda s: s.config.parallel.backend != "uni",
    "several workers of one model": lambda s: s.config.parallel.world_size > 1,
    "enable_lora": lambda s: s.config.lora is not None,
    "structured_outputs_config": lambda s: s.config.structured != StructuredOutputsConfig(),
    "images": lambda s: "images" in s.model,
    POOLS: lambda s: s.config.model.pools,
    "kv_transfer_config": lambda s: s.config.kv_transfer is not None,
    "a drafter with KV of its own": lambda s: s.config.speculative is not None
    and s.config.speculative.method in METHODS_WITH_KV,
    "compile_model": lambda s: s.config.model.compile_model,
    "quantization": lambda s: s.config.model.quantization is not None,
    "enable_prefix_caching=False": lambda s: not s.config.cache.enable_prefix_caching,
    "a model without tensor parallelism": lambda s: "tp" not in s.model,
    "a model without pipeline parallelism": lambda s: "pp" not in s.model,
    "a model without adapters": lambda s: "lora" not in s.model,
    "a model in full precision only": lambda s: "quantization" not in s.model,
    "a model that does not compile": lambda s: "compile" not in s.model,
    "a scheduler without pipelines": lambda s: "pp" not in s.scheduler,
    "a scheduler without drafts": lambda s: "drafts" not in s.scheduler,
    "a scheduler without images": lambda s: "encoder" not in s.scheduler,
    "a scheduler without connectors": lambda s: "connector" not in s.scheduler,
    ASYNC: lambda s: bool(s.config.scheduler.async_scheduling),
    "a scheduler without late results": lambda s: "async" not in s.scheduler,
    STATES: lambda s: "states" in s.model,
    LATENTS: lambda s: "latents" in s.model,
    "kv_events_config": lambda s: s.config.kv_events is not None
    and s.config.kv_events.enable_kv_cache_events,
    "num_lookahead_tokens > 0": lambda s: s.config.scheduler.num_lookahead_tokens > 0,
    "a quantised KV cache": lambda s: s.config.cache.kv_cache_dtype not in UNQUANTISED,
    "disable_hybrid_kv_cache_manager":
    lambda s: bool(s.config.scheduler.disable_hybrid_kv_cache_manager),
    "a scheduler without groups": lambda s: "groups" not in s.scheduler,
}  # fmt: skip
"""Tests whether a configuration has a feature, or lacks one."""


@dataclass(frozen=True)
class Row:
    """Two features that cannot be combined."""

    left: str
    right: str
    why: str
    fix: str


POLICY = "this scheduler_cls does not support them"
ROWS = (
    Row("speculative_config", "pipeline_parallel_size > 1",
        "drafts are proposed on the last stage, and the first stage plans before they are there",
        "leave one of them out"),
    Row("speculative_config", "logits_processors",
        "a processor takes one row of a request, and a request with drafts has several",
        "leave one of them out"),
    Row("speculative_config", "images",
        "drafts get positions as in a text without images", "leave speculative_config out"),
    Row("kv_transfer_config", "pipeline_parallel_size > 1",
        "a block would arrive in pieces, one from each stage", "leave one of them out"),
    Row("kv_transfer_config", "workers in processes of their own",
        "a connector's scheduler half and worker half must share a process, and arrivals are "
        "counted for one rank", "leave one of them out"),
    Row("kv_transfer_config", "a drafter with KV of its own",
        "the drafter's keys and values would be missing for tokens whose KV was transferred",
        'use method "ngram" or "medusa"'),
    Row("kv_transfer_config", "enable_prefix_caching=False",
        "a connector names blocks by the hashes that prefix caching makes",
        "leave enable_prefix_caching on"),
    Row("enable_lora", "compile_model",
        "adapters are added between the products that are compiled into one",
        "leave compile_model out"),
    Row("images", "compile_model",
        "embeddings replace tokens at places that change", "leave compile_model out"),
    Row('distributed_executor_backend="uni"', "more than one worker",
        "this process is one worker", 'use "mp", or "ray" for several machines'),
    Row("compile_model", "several workers of one model",
        "exchanges between workers cannot be compiled", "leave compile_model out"),
    Row("pipeline_parallel_size > 1", "a scheduler without pipelines",
        "the scheduler plans each step from the results of the step before",
        "use the default scheduler"),
    Row("tensor_parallel_size > 1", "a model without tensor parallelism",
        "its layers cannot be cut", "set tensor_parallel_size=1"),
    Row("pipeline_parallel_size > 1", "a model without pipeline parallelism",
        "its layers cannot be spread", "set pipeline_parallel_size=1"),
    Row("enable_lora", "a model without adapters",
        "the model's layers have no place for them", "leave enable_lora out"),
    Row("quantization", "a model in full precision only",
        "the model's layers cannot hold quantised weights", "leave quantization out"),
    Row("compile_model", "a model that does not compile",
        "its code changes from step to step", "leave compile_model out"),
    Row("speculative_config", "a scheduler without drafts", POLICY, "use the default scheduler"),
    Row("images", "a scheduler without images", POLICY, "use the default scheduler"),
    Row("kv_transfer_config", "a scheduler without connectors", POLICY,
        "use the default scheduler"),
    Row(ASYNC, "speculative_config",
        "drafts are made from the newest token, which the host does not have yet",
        "leave one of them out"),
    Row(ASYNC, "kv_transfer_config",
        "a step that is under way may write blocks which a transfer reads or brings",
        "leave one of them out"),
    Row(ASYNC, "pipeline_parallel_size > 1",
        "the first stage does not have the token that the last one has sampled",
        "leave one of them out; a pipeline has several plans on their way anyway"),
    Row(ASYNC, "a scheduler without late results", POLICY, "use the default scheduler"),
    *(Row(STATES, feature, why, "leave it out, or choose a model without states")
      for feature, why in ONE_TABLE.items()),
    Row(STATES, "a quantised KV cache", "a page holds either, and a state is kept in full",
        'use kv_cache_dtype="auto"'),
    Row(LATENTS, "a quantised KV cache", "no scale serves both parts of a latent",
        'use kv_cache_dtype="auto"'),
    Row(LATENTS, "kv_transfer_config", "a connector carries keys and values", "leave it out"),
    Row(STATES, "num_lookahead_tokens > 0", "a state lies in the block of the newest token",
        "use 0"),
    Row(STATES, "disable_hybrid_kv_cache_manager", "a state has a block table of its own",
        "leave it out"),
    Row(POOLS, "speculative_config", NOTHING_SAMPLED, "leave speculative_config out"),
    Row(POOLS, "logits_processors", NOTHING_SAMPLED, "leave logits_processors out"),
    Row(POOLS, "structured_outputs_config", NOTHING_SAMPLED,
        "leave structured_outputs_config out"),
    Row(POOLS, "kv_transfer_config",
        "a transfer serves an engine that continues the prompt, and a pooled prompt ends there",
        "leave kv_transfer_config out"),
    Row(POOLS, "images", "a pooled prompt is text", "choose a model that takes text only"),
    Row(ASYNC, POOLS,
        "a pooled prompt has no token that the next step could use",
        "leave async_scheduling out"),
)  # fmt: skip


def check(
    config: EngineConfig, model_args: Any, supports: frozenset[str], scheduler_cls: Any
) -> None:
    """Refuse a configuration that cannot work, before anything is loaded or started.

    Args:
        model_args: the model's `mini_vllm.model.config.ModelArgs`.
        supports: of the model's class, a subset of {"tp", "pp", "lora", "quantization",
            "compile", "images", "states", "latents"}.
        scheduler_cls: its ``supports`` is a subset of {"drafts", "encoder", "connector",
            "grammar", "pp", "async", "groups"}.

    Raises:
        ValueError: with both features, the reason and the fix.
    """
    situation = Situation(config, supports, scheduler_cls.supports)
    found = {name for name, is_there in FEATURES.items() if is_there(situation)}
    for row in ROWS:
        if row.left in found and row.right in found:
            raise ValueError(f"{row.left} does not go with {row.right}: {row.why}; {row.fix}")
    _check_sizes(config, model_args)


def settle_async_scheduling(
    config: EngineConfig, supports: frozenset[str], scheduler_cls: Any, works_behind: bool
) -> EngineConfig:
    """The configuration with a value for `async_scheduling`. The default is True on a GPU, which
    would otherwise wait for Python, unless a row forbids it. On a CPU, the model and the scheduler
    use the same cores, so it is False.

    Args:
        works_behind: whether the device executes asynchronously, in streams.

    Source: vllm/config/vllm.py#L911-L977 (VllmConfig.__post_init__) @ v0.22.1
    """
    limits = config.scheduler
    if limits.async_scheduling is not None:
        return config
    situation = Situation(config, supports, scheduler_cls.supports)
    others = [row.right for row in ROWS if row.left == ASYNC]
    is_on = works_behind and not any(FEATURES[name](situation) for name in others)
    return replace(config, scheduler=replace(limits, async_scheduling=is_on))


def settle_hybrid_kv_cache(
    config: EngineConfig, model_args: Any, supports: frozenset[str], scheduler_cls: Any
) -> EngineConfig:
    """The configuration with a value for `disable_hybrid_kv_cache_manager`. By default, layers with
    a window free the blocks before it, unless a feature needs one block table for all layers.

    Raises:
        ValueError: for False, if a feature needs one block table.

    Source: vllm/v1/core/kv_cache_utils.py#L1324-L1417 (unify_hybrid_kv_cache_specs) @ v0.22.1
    """
    limits = config.scheduler
    situation = Situation(config, supports, scheduler_cls.supports)
    against = " and ".join(name for name in ONE_TABLE if FEATURES[name](situation))
    has_windows = any(model_args.sliding_windows) or any(model_args.parts.chunks)
    if limits.disable_hybrid_kv_cache_manager is None:
        if against and has_windows:
            logger.info(
                "%s needs one block table for all layers: those with a window keep the whole "
                "text, too; without it the cache would hold more requests", against
            )  # fmt: skip
        limits = replace(limits, disable_hybrid_kv_cache_manager=bool(against))
    elif against and has_windows and not limits.disable_hybrid_kv_cache_manager:
        raise ValueError(
            f"disable_hybrid_kv_cache_manager is False, and {against} needs one block table for "
            "all layers; leave one of them out"
        )
    return replace(config, scheduler=limits)


def _check_sizes(config: EngineConfig, args: Any) -> None:
    """Raises ValueError if heads, features or layers cannot be split evenly between the ranks."""
    tp, pp = config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size
    whole = config.parallel.enable_expert_parallel
    if whole:
        _check_experts(config.parallel, args)
    heads = next(iter(_cut(args, whole).values()))
    sizes = [n for n in range(1, heads + 1) if _divides(n, args, whole)]
    *most, last = map(str, sizes)
    fix = f"use {', '.join(most)} or {last}" if most else "use 1"
    for name, size in _cut(args, whole).items():
        if size % tp:
            raise ValueError(
                f"tensor_parallel_size is {tp}; it must divide the model's {name}={size}; {fix}"
            )
    if tp not in sizes:
        raise ValueError(
            f"tensor_parallel_size is {tp}; the model's "
            f"num_key_value_heads={args.num_key_value_heads} must be a multiple of it, or it a "
            f"multiple of them; {fix}"
        )
    if pp > args.num_hidden_layers:
        raise ValueError(
            f"pipeline_parallel_size is {pp}; the model has {args.num_hidden_layers} layers, and "
            "every stage needs one; lower it"
        )


def _check_experts(parallel: Any, args: Any) -> None:
    """Raises ValueError if there are no experts, or they cannot be split evenly between ranks."""
    tp, copies = parallel.tensor_parallel_size, parallel.eplb_config.num_redundant_experts
    if args.moe is None:
        raise ValueError(
            "enable_expert_parallel is True; the model has no experts to share out; leave it out"
        )
    places = args.moe.num_experts + copies
    if places % tp:
        raise ValueError(
            f"tensor_parallel_size is {tp}; it must divide num_experts={args.moe.num_experts} and "
            f"num_redundant_experts={copies} together; with enable_eplb, {copies + -places % tp} "
            "redundant experts can be shared out evenly"
        )


def _divides(tp: int, args: Any, whole_experts: bool) -> bool:
    """Whether a model can be split into ``tp`` shards."""
    kv_heads, sizes = args.num_key_value_heads, _cut(args, whole_experts).values()
    return not (any(size % tp for size in sizes) or (kv_heads % tp and tp % kv_heads))


def _cut(args: Any, whole_experts: bool) -> dict[str, int]:
    """Sizes that are split evenly between the ranks, by their names in the config; heads first."""
    is_attending = set(args.parts.mixers) != {"mamba2"}  # else it has no heads, and no MLP
    sizes = {"num_attention_heads": args.num_attention_heads} if is_attending else {}
    if args.gated_delta is not None:
        sizes["linear_num_key_heads"] = args.gated_delta.num_key_heads
    if args.mamba2 is not None:
        sizes["state-space heads"] = args.mamba2.num_heads
        if args.mamba2.n_groups > 1:  # a single group is replicated on every rank
            sizes["groups of state-space heads"] = args.mamba2.n_groups
    has_mlp = args.moe is None or args.moe.dense_layers or "gated_mlp" in args.parts.feed_forwards
    if has_mlp and is_attending:
        sizes["intermediate_size"] = args.intermediate_size
    if args.moe is not None and not whole_experts:
        sizes["moe_intermediate_size"] = args.moe.moe_intermediate_size
        sizes["shared_expert_intermediate_size"] = args.moe.shared_expert_intermediate_size
    return sizes
