"""An engine's images: what processes them, and how much of a step they may take."""

from __future__ import annotations

from dataclasses import replace

from mini_vllm.config import EngineConfig
from mini_vllm.core.encoder_cache_manager import compute_mm_encoder_budget
from mini_vllm.model.config import ModelArgs
from mini_vllm.multimodal.processing import MultiModalProcessor


def make_image_processor(config: EngineConfig, args: ModelArgs) -> MultiModalProcessor | None:
    """What turns pictures into features; None for a model that takes text only."""
    if args.vision is None:
        return None
    max_model_len = config.scheduler.max_model_len
    return MultiModalProcessor(config.model.model, args.vision, config.multimodal, max_model_len)


def with_encoder_limits(config: EngineConfig, largest: int) -> EngineConfig:
    """The configuration with a budget and a cache that hold at least the largest image.

    Args:
        largest: its tokens.

    Raises:
        ValueError: if images may not be split, and the largest does not fit a step.
    """
    budget, cache_size = compute_mm_encoder_budget(config.scheduler, largest)
    limits = replace(
        config.scheduler, max_num_encoder_input_tokens=budget, encoder_cache_size=cache_size
    )
    return replace(config, scheduler=limits)
