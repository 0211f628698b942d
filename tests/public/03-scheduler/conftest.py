"""Builders for the tests of phase 03. The story: a small chat service; requests bear the names of
customers. Blocks hold 4 tokens; block 0 is the null block, so the first one given out is block 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_plan import StepPlan
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams


def new_scheduler(
    blocks: int = 16,
    budget: int = 16,
    rows: int = 4,
    policy: str = "fcfs",
    threshold: int = 0,
    max_model_len: int = 64,
    chunked: bool = True,
    reserve: bool = True,
    caching: bool = True,
    lookahead: int = 0,
    profile: str = "v0.22",
    extensions: Sequence[SchedulerExtension] = (),
) -> Scheduler:
    """A scheduler with so many *usable* blocks of 4 tokens, and so many rows (max_num_seqs)."""
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=rows,
        max_model_len=max_model_len,
        policy=policy,  # type: ignore[arg-type]
        long_prefill_token_threshold=threshold,
        enable_chunked_prefill=chunked,
        scheduler_reserve_full_isl=reserve,
        num_lookahead_tokens=lookahead,
        profile=profile,  # type: ignore[arg-type]
    )
    cache = CacheConfig(block_size=4, num_gpu_blocks=blocks + 1, enable_prefix_caching=caching)
    return Scheduler(config, cache, extensions, hash_root=b"root")


def new_request(
    name: str,
    prompt: int | Sequence[int],
    max_tokens: int | None = 8,
    priority: int = 0,
    arrival: float = 0.0,
    eos: int | None = None,
    **params: Any,
) -> Request:
    """A greedy request; a prompt given as a number is that many tokens of its own."""
    if isinstance(prompt, int):
        prompt = [sum(name.encode()) * 1000 + i for i in range(prompt)]
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, **params)
    return Request(name, prompt, sampling, priority, arrival, eos)


def start(scheduler: Scheduler, request: Request, computed: int, output: int = 0) -> Request:
    """Put a request into `running` as if it had been admitted some steps ago: `output` tokens
    sampled, `computed` tokens computed, with the blocks for them."""
    scheduler.requests[request.request_id] = request
    if scheduler.cache_config.enable_prefix_caching:
        request.set_block_hasher(scheduler.kv_cache_manager.block_hasher)
    request.append_output_token_ids([7000 + i for i in range(output)])
    blocks = scheduler.kv_cache_manager.allocate_slots(request, computed)
    assert blocks is not None, "this test asks for more blocks than it made"
    request.num_computed_tokens = computed
    request.transition_to(RequestStatus.RUNNING)
    scheduler.running.append(request)
    return request


def new_step(scheduler: Scheduler) -> StepPlan:
    """An empty plan with the whole budget."""
    return StepPlan(scheduler.scheduler_config.max_num_batched_tokens)


def names(requests: Any) -> list[str]:
    """The ids of some requests, in order."""
    return [request.request_id for request in requests]


def table(scheduler: Scheduler, name: str) -> list[int]:
    """The block table of a request."""
    return scheduler.kv_cache_manager.get_block_ids(name)


@pytest.fixture
def chat() -> SimpleNamespace:
    """The builders above, by name."""
    return SimpleNamespace(
        scheduler=new_scheduler,
        request=new_request,
        start=start,
        step=new_step,
        names=names,
        table=table,
    )
