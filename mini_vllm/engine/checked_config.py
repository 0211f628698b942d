"""The settings of an engine whose model is there, checked before seconds go into anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from mini_vllm.config import EngineConfig, ModelConfig
from mini_vllm.config.arguments import EngineOptions
from mini_vllm.config.checks import require_one_of
from mini_vllm.config.model import DTYPES
from mini_vllm.model.config import load_config
from mini_vllm.model.families import FAMILIES, unsupported
from mini_vllm.model.generation import default_sampling_params


def recommended_params(model: ModelConfig) -> dict[str, Any]:
    """Fields of `SamplingParams` for requests that bring none; see `model.generation`."""
    return default_sampling_params(
        model.model, model.generation_config, model.override_generation_config
    )


def make_engine_config(model: str | Path, **options: Unpack[EngineOptions]) -> EngineConfig:
    """:meth:`EngineConfig.from_kwargs`, for a model that is there.

    Raises:
        FileNotFoundError: if there is no such model.
        ValueError: that names the file, for one that says what cannot be.
    """
    config = EngineConfig.from_kwargs(model, **options)
    args = load_config(config.model.model, config.model.hf_overrides)
    path = Path(config.model.model) / "config.json"
    if not set(args.architectures) & set(FAMILIES):
        raise ValueError(f"{path}: {unsupported(args.architectures)}")
    if config.model.dtype == "auto":
        require_one_of(f"{path}: dtype", args.dtype, DTYPES[1:])
    recommended_params(config.model)
    return config
