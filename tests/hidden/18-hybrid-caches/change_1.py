"""Change request 1, over random windows, blocks and intervals."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.group_managers import WindowManager
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


@pytest.mark.parametrize("seed", range(20))
def test_change_1_any_interval(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        block, window = draw.choice([2, 4]), draw.randint(2, 24)
        alignment = block * draw.choice([1, 1, 2])
        retention = alignment * draw.choice([0, 1, 2, 3, 5])
        manager: Any = WindowManager(
            GroupSpec("sliding_window", block, window=window),
            0,
            BlockPool(80, True),
            block,
            64,
            256,
        )
        manager.retention = retention
        num_blocks = draw.randint(1, 30) * alignment // block
        request = Request("r", list(range(num_blocks * block)), SamplingParams(max_tokens=1))
        request.block_hashes = [bytes([index]) * 32 for index in range(num_blocks)]
        manager.add_hits("r", [], 0)
        manager.add_blocks("r", num_blocks * block)
        half = num_blocks * block // 2 // alignment * alignment
        manager.publish(request, half, alignment)
        manager.publish(request, num_blocks * block, alignment)
        stride, tail = max(retention, alignment), -(-(window - 1) // block) * block
        names = {
            index
            for index in range(num_blocks)
            if (end := (index * block // stride + 1) * stride) - tail <= index * block < end
        }
        table = manager.req_to_blocks["r"]
        assert {i for i in range(num_blocks) if table[i].block_hash is not None} == names
        hit = len(manager.find_hit(request, num_blocks * block, [0], alignment)[0]) * block
        whole = num_blocks * block
        assert hit == (whole // stride * stride if tail < stride else whole)
