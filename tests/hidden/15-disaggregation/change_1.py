"""Change request 1, beside a model in a few lines."""

from __future__ import annotations

import random

import pytest

from mini_vllm.kv_transfer.offload_manager import CPUOffloadingManager


@pytest.mark.parametrize("seed", range(30))
def test_change_1_any_sequence(seed: int) -> None:
    draw, size = random.Random(seed), 1 + seed % 6
    tier, order = CPUOffloadingManager(size), []
    for _ in range(30):
        asked = [bytes([draw.randrange(12)]) for _ in range(draw.randint(1, 8))]
        new = [key for key in dict.fromkeys(asked) if key not in order]
        may_go = [key for key in order if key not in asked]
        room = size - len(order) + len(may_go)
        right = new[:room]
        gone = may_go[: max(len(right) - (size - len(order)), 0)]
        found = tier.prepare_store(asked)
        if new and not right:
            assert found is None
            continue
        assert found is not None and found.keys_to_store == right
        assert found.evicted_keys == gone
        tier.complete_store(found.keys_to_store)
        order = [key for key in order if key not in gone] + right
