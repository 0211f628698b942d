"""Checks of an engine's settings against its model, before any work that takes seconds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from mini_vllm.config import EngineConfig, ModelConfig, SchedulerConfig, combinations
from mini_vllm.config.arguments import EngineOptions
from mini_vllm.config.checks import require_one_of
from mini_vllm.config.model import DTYPES
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.errors import show
from mini_vllm.gguf import is_gguf
from mini_vllm.kv_transfer.factory import KVConnectorFactory
from mini_vllm.model.config import (
    ModelArgs,
    config_file,
    load_config,
    read_config,
    read_generation,
)
from mini_vllm.model.config_schema import misspelt_entries
from mini_vllm.model.families import known, with_decoder
from mini_vllm.model.generation import default_sampling_params, generation_file, without_effect
from mini_vllm.platforms import platform_of
from mini_vllm.plugins import load_general_plugins
from mini_vllm.pooling.config import load_pooling_args, settle_runner
from mini_vllm.pooling.sentence_transformers import max_seq_length

logger = logging.getLogger(__name__)


def recommended_params(model: ModelConfig) -> dict[str, Any]:
    """Fields of `SamplingParams` for requests that bring none; see `model.generation`."""
    return default_sampling_params(
        model.model, model.generation_config, model.override_generation_config
    )


def load_model_args(model: ModelConfig) -> ModelArgs:
    """The model's shape, and the tokens that end its texts, from all settings that name them.

    Which tokens those are is said by `config.json`, by `generation_config.json` or the one of the
    folder `generation_config`, or instead of both by an `eos_token_id` of
    `override_generation_config`. The tokenizer's EOS comes on top where one is loaded.

    Raises:
        FileNotFoundError: for a missing folder or file.
        ValueError: that names the file or the setting, for a bad value.
    """
    generation = generation_file(model.model, model.generation_config)
    args = load_config(model.model, model.hf_overrides, generation)
    own = (model.override_generation_config or {}).get("eos_token_id")
    if own is None:
        return args
    own = own if isinstance(own, list) else [own]
    if max(own, default=0) >= args.vocab_size:
        raise ValueError(
            f"override_generation_config: eos_token_id is {show(own)}; the vocabulary ends at "
            f"{args.vocab_size - 1}"
        )
    return replace(args, eos_token_ids=tuple(own))


def make_engine_config(model: str | Path, **options: Unpack[EngineOptions]) -> EngineConfig:
    """:meth:`EngineConfig.from_kwargs`, with the model's files found and read.

    Raises:
        FileNotFoundError: if there is no such model.
        ValueError: naming the file, if a value in it is impossible.
    """
    load_general_plugins()  # they may bring the model
    config = EngineConfig.from_kwargs(model, **options)
    recommended_params(config.model)
    config = settle_runner(config)
    args = load_model_args(config.model)
    path = config_file(config.model.model)
    _warn_of_what_is_not_read(config.model)
    if not set(args.architectures) & set(known()):
        from mini_vllm.model.lookalike import refusal  # torch comes with it

        raise ValueError(refusal(config.model.model, args.architectures, config.model.hf_overrides))
    if config.model.dtype == "auto":
        require_one_of(f"{path}: dtype", args.dtype, DTYPES[1:])
    read = max_seq_length(Path(config.model.model)) if config.model.pools else None
    if config.fits_max_model_len:
        most = args.max_position_embeddings
        config = with_longest(config, min(most, read or most), options)
        config.check_budget()
    check_shape(config, args)
    return with_supported_dtype(config, args)


def with_supported_dtype(config: EngineConfig, args: ModelArgs) -> EngineConfig:
    """The configuration with a dtype that its device computes in.

    Raises:
        ValueError: for a device that no platform has, or if the user asks for another dtype.

    Source: vllm/config/model.py#L2003-L2044 (_resolve_auto_dtype) @ v0.22.1. Difference: there a
    checkpoint in float32 is loaded in the first of the list, here in float32.
    """
    from mini_vllm.platforms.interface import UnspecifiedPlatform  # torch comes with it

    model = config.model
    platform = platform_of(model.device)
    if isinstance(platform, UnspecifiedPlatform):
        platform.check_device(model.device)
    supported = [str(dtype).removeprefix("torch.") for dtype in platform.supported_dtypes]
    name = args.dtype if model.dtype == "auto" else model.dtype
    if name in supported:
        return config
    if model.dtype != "auto":
        raise ValueError(
            f"dtype is {name!r}; device {model.device!r} computes in {', '.join(supported)}; "
            "choose one of these, or leave it out"
        )
    logger.warning(
        "device %r does not compute in %s, the checkpoint's dtype; the weights are loaded as %s",
        model.device, name, supported[0],
    )  # fmt: skip
    return replace(config, model=replace(model, dtype=supported[0]))


def with_longest(config: EngineConfig, length: int, options: Mapping[str, Any]) -> EngineConfig:
    """The configuration with the model's own length. Without chunked prefill a step must hold a
    whole prompt, so a budget that was not given follows."""
    limits = config.scheduler
    budget = limits.max_num_batched_tokens
    if not limits.enable_chunked_prefill and options.get("max_num_batched_tokens") is None:
        budget = max(budget, length)
    limits = replace(limits, max_model_len=length, max_num_batched_tokens=budget)
    return replace(config, scheduler=limits)


def check_shape(
    config: EngineConfig, args: ModelArgs, scheduler_cls: type[Scheduler] = Scheduler
) -> None:
    """Refuse settings that contradict the model's `config.json`, before any weight is read.

    Raises:
        ValueError: for a length beyond the model's positions, features that do not go together or
            not with this model, sizes that do not divide, an unknown quantization, connector or
            logits processor, or a draft model with another vocabulary.
        OSError: for a draft model that does not exist.
    """
    most, length = args.max_position_embeddings, config.scheduler.max_model_len
    if length > most:
        raise ValueError(
            f"max_model_len is {length}; the model has {most} positions; lower it to at "
            f"most {most}, or leave it out"
        )
    # Not sooner: torch comes with them, and takes its seconds.
    from mini_vllm.model.registry import resolve_model_class
    from mini_vllm.quantization.config import get_quantization_config
    from mini_vllm.sample.custom import load_classes
    from mini_vllm.spec_decode.checks import check_drafter

    load_pooling_args(config)
    supports = resolve_model_class(args.architectures).supports
    combinations.check(config, args, supports, scheduler_cls)
    model = config.model
    get_quantization_config(model.model, model.quantization, model.hf_overrides)
    if config.kv_transfer is not None:
        KVConnectorFactory.get_connector_class(config.kv_transfer)
    load_classes(config.model.logits_processors)
    check_drafter(config, args)


def settled(config: EngineConfig, args: ModelArgs, scheduler_cls: type[Scheduler]) -> EngineConfig:
    """The configuration as an engine runs it, checked, with what device, model and scheduler
    decide: `dtype`, `async_scheduling` and `disable_hybrid_kv_cache_manager`.

    Raises ValueError or OSError as `check_shape` and `with_supported_dtype` do.
    """
    from mini_vllm.model.registry import resolve_model_class

    check_shape(config, args, scheduler_cls)
    config = with_supported_dtype(config, args)
    works_behind = platform_of(config.model.device).streams is not None
    supports = resolve_model_class(args.architectures).supports
    config = combinations.settle_async_scheduling(config, supports, scheduler_cls, works_behind)
    return combinations.settle_hybrid_kv_cache(config, args, supports, scheduler_cls)


def _warn_of_what_is_not_read(model: ModelConfig) -> None:
    if not is_gguf(model.model):
        for name, meant in misspelt_entries(with_decoder(read_config(model.model))).items():
            logger.warning(
                "%s: %s is not read, and %s is left out; if that is meant, mend the file",
                config_file(model.model), name, meant,
            )  # fmt: skip
    file = generation_file(model.model, model.generation_config)
    if model.generation_config == "vllm" or not file.is_file():
        return
    if names := without_effect(read_generation(file)):
        logger.warning("%s: %s have no effect in this engine", file, ", ".join(names))


def with_last_position(config: EngineConfig) -> SchedulerConfig:
    """The scheduler's limits. It leaves the last position of the longest sequence uncomputed, for
    what is sampled there is never read; of a pooled prompt every position counts."""
    limits = config.scheduler
    room = 1 if config.model.pools else 0
    return replace(limits, max_model_len=limits.max_model_len + room)
