"""Builders for the tests of phase 16. The story: the same small chat service under other rules;
requests bear the names of customers. Blocks hold 4 tokens; block 0 is the null block, so the first
one given out is block 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.policies.block_manager import BlockManager
from mini_vllm.policies.prefill_first import MinivLLM
from mini_vllm.policies.v0_plan import PreemptionMode, V0Options
from mini_vllm.policies.vllm_v0 import VllmV0
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams

ANSWER = 7
"""What the pretended model says, always."""


def new_config(budget: int, rows: int, policy: str = "fcfs") -> SchedulerConfig:
    return SchedulerConfig(budget, rows, 64, policy)  # type: ignore[arg-type]


def new_minivllm(blocks: int = 20, budget: int = 32, rows: int = 8) -> MinivLLM:
    """MinivLLM's scheduler with so many *usable* blocks and so many rows (max_num_seqs)."""
    cache = CacheConfig(block_size=4, num_gpu_blocks=blocks + 1)
    return MinivLLM(new_config(budget, rows), cache, (), b"root")


def new_v0(
    blocks: int = 12,
    host_blocks: int = 12,
    budget: int = 64,
    rows: int = 8,
    policy: str = "fcfs",
    swap: bool = False,
) -> VllmV0:
    """V0's scheduler without a watermark; ``swap``: it swaps lone requests too."""
    mode = PreemptionMode.SWAP if swap else None
    options = V0Options(watermark=0.0, preemption_mode=mode)
    cache = CacheConfig(4, blocks + 1, False, num_cpu_blocks=host_blocks)
    return VllmV0(new_config(budget, rows, policy), cache, (), b"root", options)


def new_manager(blocks: int = 9, host_blocks: int = 6) -> BlockManager:
    """V0's block manager alone."""
    cache = CacheConfig(4, blocks + 1, num_cpu_blocks=host_blocks)
    return BlockManager(cache, max_model_len=64, hash_root=b"root", watermark=0.0)


def new_request(
    name: str,
    prompt: int | Sequence[int],
    max_tokens: int = 8,
    priority: int = 0,
    arrival: float = 0.0,
) -> Request:
    """A greedy request; a prompt given as a number is that many tokens that no other has."""
    if isinstance(prompt, int):
        prompt = [sum(name.encode()) * 1000 + i for i in range(prompt)]
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    return Request(name, prompt, sampling, priority, arrival)


def add(scheduler: Scheduler, *requests: Request) -> None:
    for request in requests:
        scheduler.add_request(request)


def hold(manager: BlockManager, name: str, computed: int, reserved: int = 0) -> Request:
    """A request whose `computed` tokens lie in blocks of its own, findable by their hashes, and
    which has slots for `reserved` further ones."""
    request = new_request(name, computed)
    request.set_block_hasher(manager.block_hasher)
    assert manager.allocate_slots(request, computed, num_lookahead_tokens=reserved) is not None
    request.num_computed_tokens = computed
    manager.publish(request)
    return request


def share(manager: BlockManager, source: Request, name: str, computed: int) -> Request:
    """A request that stands in the same blocks as `source` for its first tokens: a fork by hand."""
    request = new_request(name, source.all_token_ids)
    request.set_block_hasher(manager.block_hasher)
    blocks = manager.req_to_blocks[source.request_id][: -(-computed // 4)]
    manager.block_pool.touch(blocks)
    manager.req_to_blocks[name] = list(blocks)
    manager.num_cached_blocks[name] = 0
    request.num_computed_tokens = computed
    return request


def run(scheduler: VllmV0, request: Request, computed: int) -> Request:
    """Put a request into `running` as if it had been admitted some steps ago: `computed` tokens
    computed, the next one sampled, blocks for what is computed."""
    scheduler.add_request(request)
    scheduler.waiting.remove_requests([request])
    request.append_output_token_ids([ANSWER] * (computed + 1 - request.num_prompt_tokens))
    blocks = scheduler.kv_cache_manager.allocate_slots(request, computed)
    assert blocks is not None, "this test asks for more blocks than it made"
    request.num_computed_tokens = computed
    request.transition_to(RequestStatus.RUNNING)
    scheduler.running.append(request)
    return request


def stop(scheduler: VllmV0, request: Request) -> Request:
    """What happens to a victim before its blocks are taken."""
    scheduler.running.remove(request)
    request.transition_to(RequestStatus.PREEMPTED)
    request.num_preemptions += 1
    return request


def step(scheduler: Scheduler) -> Any:
    """One whole step, with a model that always gives the same answer; its plan."""
    plan = scheduler.schedule()
    known = (scheduler.requests.get(name) for name in plan.num_scheduled_tokens)
    done = [r for r in known if r is not None and r.num_computed_tokens >= r.num_tokens]
    scheduler.update_from_output(plan, {request.request_id: [ANSWER] for request in done})
    return plan


def plans(scheduler: Scheduler, steps: int) -> list[dict[str, int]]:
    """Tokens by request, for each of the next steps."""
    return [step(scheduler).num_scheduled_tokens for _ in range(steps)]


def names(requests: Any) -> list[str]:
    """The ids of some requests, in order."""
    return [request.request_id for request in requests]


def table(manager: Any, name: str) -> list[int]:
    """The block table of a request."""
    return list(manager.get_block_ids(name))


@pytest.fixture
def desk() -> SimpleNamespace:
    """The builders above, by name."""
    builders = (add, hold, share, run, stop, step, plans, names, table)
    return SimpleNamespace(
        minivllm=new_minivllm,
        v0=new_v0,
        manager=new_manager,
        request=new_request,
        **{builder.__name__: builder for builder in builders},
    )
