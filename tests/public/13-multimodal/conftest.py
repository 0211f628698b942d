"""Builders for the tests of phase 13. The story: ana asks about a cat of 4 tokens and a dog of 6,
zoe had asked before her, and an owl has 3. Images have names instead of pixels.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm.config import SchedulerConfig
from mini_vllm.core.encoder_cache_manager import EncoderCacheManager
from mini_vllm.core.encoder_inputs import EncoderInputs
from mini_vllm.mm_features import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

SIZES = {"cat": 4, "dog": 6, "owl": 3}


def image(offset: int, name: str, mask: tuple[bool, ...] | None = None, **data: Any) -> Any:
    """An image whose first position in the prompt is ``offset``."""
    length = SIZES[name] if mask is None else len(mask)
    return MultiModalFeatureSpec(data, "image", name, PlaceholderRange(offset, length, mask))


def request(name: str, *images: Any, length: int = 40) -> Request:
    """A prompt of ``length`` tokens with these images."""
    params = SamplingParams(temperature=0.0, max_tokens=4)
    return Request(name, range(length), params, arrival_time=0.0, mm_features=images)


def holding(size: int, *names: str, free: tuple[str, ...] = ()) -> EncoderCacheManager:
    """A cache of ``size`` rows with these images, needed by "zoe"; those in ``free`` by none."""
    manager = EncoderCacheManager(size)
    for name in (*free, *names):
        manager.cached[name] = set() if name in free else {"zoe"}
        manager.num_free_slots -= SIZES[name]
        if name in free:
            manager.freeable[name] = SIZES[name]
        else:
            manager.num_freeable_slots -= SIZES[name]
    return manager


def state_of(manager: EncoderCacheManager) -> dict[str, Any]:
    """All that a manager knows."""
    return {
        "cached": {name: sorted(users) for name, users in manager.cached.items()},
        "freeable": list(manager.freeable.items()),
        "freed": list(manager.freed),
        "num_free_slots": manager.num_free_slots,
        "num_freeable_slots": manager.num_freeable_slots,
    }


def encoder(size: int = 20, budget: int = 20, **config: Any) -> EncoderInputs:
    """The encoder's say in scheduling, with a cache of ``size`` rows."""
    limits = SchedulerConfig(encoder_cache_size=size, max_num_encoder_input_tokens=budget, **config)
    return EncoderInputs(limits)


@pytest.fixture
def lab() -> SimpleNamespace:
    """The builders above."""
    return SimpleNamespace(
        image=image, request=request, holding=holding, state_of=state_of, encoder=encoder
    )
