"""Change request 2, over random adapters, pins and needs."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
import torch

from mini_vllm.config import LoRAConfig
from mini_vllm.lora.slots import LoRAModelManager


def manager_of(sizes: dict[str, int], room: int, **limits: int | None) -> LoRAModelManager:
    model = torch.nn.Module()
    model.dtype, model.absent = torch.float32, ()  # type: ignore[assignment]
    config = LoRAConfig(max_loras=1, max_cpu_loras=room)
    manager = LoRAModelManager(model, config, 4, torch.device("cpu"))
    manager._load = lambda key, path: SimpleNamespace(  # type: ignore[assignment,return-value,method-assign]
        weights={}, num_bytes=sizes[key]
    )
    for name, limit in limits.items():
        setattr(manager, name, limit)
    return manager


@pytest.mark.parametrize("seed", range(150))
def test_change_2_as_a_list_says(seed: int) -> None:
    rng = Random(seed)
    sizes = {f"k{i}": rng.randint(1, 40) for i in range(6)}
    room, limit = rng.randint(1, 5), rng.choice([None, 10, 50, 80])
    manager = manager_of(sizes, room, max_cpu_bytes=limit)
    pinned = set(rng.sample(sorted(sizes), rng.randint(0, 2)))
    manager.pinned = set(pinned)
    kept: list[str] = []
    for _ in range(14):
        key, keep = rng.choice(sorted(sizes)), rng.sample(sorted(sizes), rng.randint(0, 1))
        manager.add_adapter(key, "/x", keep=keep)
        kept = [old for old in kept if old != key] + [key]
        for old in kept[:-1]:
            total = sum(sizes[other] for other in kept)
            if len(kept) <= room and (limit is None or total <= limit):
                break
            if old not in pinned and old not in keep:
                kept = [other for other in kept if other != old]
        assert list(manager.cpu_cache) == kept


def test_change_2_there_is_no_limit_at_first() -> None:
    manager = manager_of({"a": 10**12}, 1)
    assert manager.max_cpu_bytes is None
    manager.add_adapter("a", "/x")
    assert list(manager.cpu_cache) == ["a"]
