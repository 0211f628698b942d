"""Short ways to build schedulers and requests for the tests of the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import EngineCoreOutput, SchedulerOutput
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

TOKEN = 7
"""What the fake model of :func:`step` samples."""


def make_scheduler(
    blocks: int = 9,
    block_size: int = 4,
    seqs: int = 4,
    budget: int = 16,
    max_model_len: int = 64,
    policy: str = "fcfs",
    threshold: int = 0,
    chunked: bool = True,
    caching: bool = True,
    reserve: bool = True,
    lookahead: int = 0,
    extensions: Sequence[SchedulerExtension] = (),
) -> Scheduler:
    """A scheduler with ``blocks`` *usable* blocks: the null block comes on top."""
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        max_model_len=max_model_len,
        policy=policy,  # type: ignore[arg-type]
        long_prefill_token_threshold=threshold,
        enable_chunked_prefill=chunked,
        scheduler_reserve_full_isl=reserve,
        num_lookahead_tokens=lookahead,
    )
    cache = CacheConfig(block_size, blocks + 1, caching)
    return Scheduler(config, cache, extensions, hash_root=b"root")


def make_request(
    request_id: str,
    prompt: int | Sequence[int],
    max_tokens: int | None = 8,
    priority: int = 0,
    arrival: float = 0.0,
    eos: int | None = None,
    lora_name: str | None = None,
    cache_salt: str | None = None,
    mm_hashes: Sequence[tuple[int, int, str]] = (),
    **params: Any,
) -> Request:
    """A greedy request; a prompt given as a number is that many tokens of its own."""
    if isinstance(prompt, int):
        prompt = [sum(request_id.encode()) * 1000 + i for i in range(prompt)]
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, **params)
    return Request(
        request_id, prompt, sampling, priority, arrival, eos, cache_salt, lora_name, mm_hashes
    )


def add(scheduler: Scheduler, *requests: Request) -> None:
    for request in requests:
        scheduler.add_request(request)


def finish_step(
    scheduler: Scheduler, output: SchedulerOutput, token: int = TOKEN
) -> list[EngineCoreOutput]:
    """The update after ``output``: ``token`` for every request that is computed to its end."""
    sampled = {}
    for request_id in output.num_scheduled_tokens:
        request = scheduler.requests.get(request_id)
        if request is not None and request.num_computed_tokens >= request.num_tokens:
            sampled[request_id] = [token]
    outputs = scheduler.update_from_output(output, sampled)
    scheduler.check_integrity()
    return outputs


def step(scheduler: Scheduler, token: int = TOKEN) -> SchedulerOutput:
    """One whole step of a model that always samples ``token``."""
    output = scheduler.schedule()
    finish_step(scheduler, output, token)
    return output


def drain(scheduler: Scheduler, max_steps: int = 500) -> int:
    """Step until there is nothing to do; the number of steps."""
    for steps in range(max_steps):
        if not scheduler.has_requests():
            return steps
        step(scheduler)
    raise AssertionError(f"not done after {max_steps} steps: {scheduler.requests}")


def step_until(
    scheduler: Scheduler, wanted: Callable[[SchedulerOutput], object]
) -> SchedulerOutput:
    """Step until a plan is as ``wanted``; that plan."""
    for _ in range(60):
        output = step(scheduler)
        if wanted(output):
            return output
    raise AssertionError(f"it has not happened in 60 steps: {scheduler.requests}")


def ids(requests: object) -> list[str]:
    """The ids of some requests, in order."""
    return [request.request_id for request in requests]  # type: ignore[attr-defined]


def table(scheduler: Scheduler, request_id: str) -> list[int]:
    return scheduler.kv_cache_manager.get_block_ids(request_id)
