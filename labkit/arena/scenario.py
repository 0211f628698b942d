"""A scheduler, or a fleet policy, that is steered from outside: scenarios of a worker. Runs in the
child only."""

from __future__ import annotations

from typing import Any

from labkit.inside import program


def drive(
    begin: dict[str, Any] | None = None,
    sampled: dict[str, list[int]] | None = None,
    arrivals: list[dict[str, Any]] | None = None,
    plan: bool = True,
    audit: bool = False,
) -> dict[str, Any]:
    """Steer a scheduler from outside, a step a call (`labkit.arena.remote`).

    Args:
        begin: make a new one first: its class, options and limits; see `_new_scheduler`.
        sampled: the tokens that the last plan brought, by request; None: there was no plan.
        arrivals: fields of requests that have come since.
        plan: whether to plan the next step.
        audit: whether it shall look at its own books.
    """
    if begin is not None:
        _DRIVEN["scheduler"] = _new_scheduler(**begin)
    scheduler, ended = _DRIVEN["scheduler"], []
    if sampled is not None:
        outputs = scheduler.update_from_output(_DRIVEN.pop("plan"), sampled)
        ended = [[o.request_id, o.finish_reason] for o in outputs if o.finish_reason is not None]
    for fields in arrivals or ():
        scheduler.add_request(_new_request(**fields))
    answer: dict[str, Any] = {"ended": ended}
    if plan:
        _DRIVEN["plan"] = scheduler.schedule()
        answer["plan"] = _plan_data(_DRIVEN["plan"])
    if audit:
        scheduler.check_integrity()
    return answer | {"free_blocks": scheduler.kv_cache_manager.num_free_blocks}


_DRIVEN: dict[str, Any] = {}
"""The scheduler that `drive` steers, and the plan that it has not been told the tokens of."""


def route(
    begin: dict[str, Any] | None = None,
    place: list[Any] | None = None,
    keep: list[int] | None = None,
    fetch: list[int] | None = None,
) -> Any:
    """Ask a fleet policy, a question a call (`labkit.arena.remote.RemoteFleetPolicy`).

    Args:
        begin: make a new one first: its class, and the prices.
        place: a job, and the views of prefill and decode machines, as lists of numbers.
        keep: keys of a prompt's blocks.
        fetch: length of the prompt, tokens in the cache and in the tier.
    """
    from mini_vllm.policies.fleet import Job, Prices, View

    if begin is not None:
        cls = program.find_object(begin["policy"])
        _DRIVEN["policy"] = cls(Prices(**begin["prices"]))
    policy = _DRIVEN["policy"]
    if place is not None:
        job, prefill, decode = place
        found = policy.place(Job(*job), [View(*v) for v in prefill], [View(*v) for v in decode])
        return list(found)
    if keep is not None:
        return list(policy.keep(keep))
    return None if fetch is None else policy.fetch(*fetch)


def _new_scheduler(
    scheduler: str, options: dict[str, Any], limits: dict[str, Any], cache: dict[str, Any]
) -> Any:
    """A scheduler of "package.module:Class", with V0's options if there are any; an option given
    as text is the name of an object."""
    from mini_vllm.config import CacheConfig, SchedulerConfig
    from mini_vllm.policies.v0_plan import V0Options

    cls = program.find_object(scheduler)
    named = {k: program.find_object(v) if type(v) is str else v for k, v in options.items()}
    own = {"options": V0Options(**named)} if named else {}
    return cls(SchedulerConfig(**limits), CacheConfig(**cache), (), b"root", **own)


def _new_request(id: str, tokens: list[int], max_tokens: int, priority: int, time: float) -> Any:
    from mini_vllm.request import Request
    from mini_vllm.sampling_params import SamplingParams

    return Request(
        id, tokens, SamplingParams(temperature=0.0, max_tokens=max_tokens), priority, time
    )


def _plan_data(plan: Any) -> dict[str, Any]:
    """What a plan tells the worker, without the texts."""
    cached = plan.scheduled_cached_reqs
    return {
        "tokens": plan.num_scheduled_tokens,
        "new": [[r.req_id, r.num_computed_tokens] for r in plan.scheduled_new_reqs],
        "known": [
            list(row) for row in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        ],
        "resumed": sorted(cached.resumed_req_ids),
        "blocks": plan.new_block_ids,
        "preempted": plan.preempted_req_ids,
        "finished": sorted(plan.finished_req_ids),
        "swap_out": [list(pair) for pair in plan.blocks_to_swap_out],
        "swap_in": [list(pair) for pair in plan.blocks_to_swap_in],
        "copy": [list(pair) for pair in plan.blocks_to_copy],
    }
