"""Questions of phase 16: forks, copies, and what preemption costs."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.practice.question import Question


def _manager() -> Any:
    from mini_vllm.config import CacheConfig
    from mini_vllm.policies.block_manager import BlockManager

    cache = CacheConfig(4, 21, num_cpu_blocks=8)
    return BlockManager(cache, max_model_len=64, hash_root=b"quiz", watermark=0.0)


def _request(name: str, length: int) -> Any:
    from mini_vllm.request import Request
    from mini_vllm.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=8)
    return Request(name, list(range(length)), params, 0, 0.0)


def forked(rng: Random) -> Question:
    length, members = rng.randint(3, 18), rng.choice((2, 3))

    def engine() -> int:
        manager = _manager()
        requests = [_request(f"r{i}", length) for i in range(members)]
        manager.allocate_slots(requests[0], length)
        requests[0].num_computed_tokens = length
        for child in requests[1:]:
            manager.fork(requests[0], child, length)
        for request in requests:
            request.append_output_token_ids([7])
            manager.append(request, length + 1)
        return 20 - int(manager.num_free_blocks)

    return Question(
        f"Blocks of 4. A request with {length} computed tokens is forked into {members} sequences in"
        " all. Then each of them writes one token. How many blocks are in use?",
        engine,
        lambda: length // 4 + members,
        f"{length // 4} full blocks are shared for good. Each of the {members} sequences then writes"
        " into a block of its own.",
    )


def swapped(rng: Random) -> Question:
    length = rng.randint(3, 24)

    def engine() -> int:
        manager = _manager()
        request = _request("r", length)
        manager.allocate_slots(request, length)
        request.num_computed_tokens = length
        return len(manager.swap_out([request]))

    return Question(
        f"Blocks of 4. A request with {length} computed tokens is swapped out. How many blocks are"
        " copied to the host?",
        engine,
        lambda: (length + 3) // 4,
        f"All blocks with computed tokens: {length} / 4, rounded up.",
    )


KINDS = {"forked": forked, "swapped": swapped}
