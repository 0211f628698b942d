"""A scheduler, or a fleet policy, in another process, which only gets to make plans.

::

    simulator, clock, referee, SLO   (here)          labkit.arena.scenario.drive   (there)
                 arrivals, sampled tokens  ────────►  the scheduler that is judged
                                     plan  ◄────────

Nothing that the other side says is believed beyond the plan itself: which requests are finished,
what they have computed and how long it took is worked out here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from labkit.arena.referee import RuleBroken
from labkit.process.worker import Worker
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler_output import (
    CachedRequestData,
    EngineCoreOutput,
    NewRequestData,
    SchedulerOutput,
)
from mini_vllm.policies.fleet import FleetPolicy, Job, Placement, Prices, View
from mini_vllm.request import Request


class RemoteScheduler:
    """Stands in for a scheduler in :class:`labkit.arena.simulator.Simulation`.

    Args:
        worker: makes one scheduler at a time; a new one replaces the last.
        target: its class, "package.module:Class".
        limits, cache: what it is told.
        options: fields of `V0Options`; objects by name, "package.module:Object".
    """

    def __init__(
        self,
        worker: Worker,
        target: str,
        limits: SchedulerConfig,
        cache: CacheConfig,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.worker = worker
        self.requests: dict[str, Request] = {}
        self.kv_cache_manager = SimpleNamespace(num_free_blocks=(cache.num_gpu_blocks or 1) - 1)
        self._arrivals: list[dict[str, Any]] = []
        self._sampled: dict[str, list[int]] | None = None
        self._ended: set[str] = set()
        begin = {"scheduler": target, "options": dict(options or {})}
        self._drive(begin=begin | {"limits": asdict(limits), "cache": asdict(cache)}, plan=False)

    def add_request(self, request: Request) -> None:
        """Hand a request over with the next step."""
        self.requests[request.request_id] = request
        self._arrivals.append(
            {
                "id": request.request_id,
                "tokens": list(request.prompt_token_ids),
                "max_tokens": request.max_tokens,
                "priority": request.priority,
                "time": request.arrival_time,
            }
        )

    def schedule(self) -> SchedulerOutput:
        """The other side's next plan.

        Raises:
            RuleBroken: it is no plan, or the requests that ended are not those that should have.
            labkit.process.worker.WorkerError: the other side raised, hangs or has died.
        """
        data = self._drive(arrivals=self._arrivals, sampled=self._sampled)["plan"]
        self._arrivals = []
        plan = self._read(data)
        rows = [(new.req_id, new.num_computed_tokens) for new in plan.scheduled_new_reqs]
        cached = plan.scheduled_cached_reqs
        rows += zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        for request_id, computed in rows:
            count = plan.num_scheduled_tokens[request_id]
            self.requests[request_id].num_computed_tokens = computed + count
        return plan

    def update_from_output(
        self, plan: SchedulerOutput, sampled: Mapping[str, list[int]]
    ) -> list[EngineCoreOutput]:
        """Note what was sampled; a request has finished when it has as many as it may have."""
        self._sampled = {request_id: list(tokens) for request_id, tokens in sampled.items()}
        outputs = []
        for request_id, tokens in self._sampled.items():
            request = self.requests[request_id]
            request.append_output_token_ids(tokens)
            done = request.num_output_tokens == request.max_tokens
            outputs.append(EngineCoreOutput(request_id, tokens, "length" if done else None))
            if done:
                del self.requests[request_id]
                self._ended.add(request_id)
        if not self.requests and not self._arrivals:
            self._drive(sampled=self._sampled, plan=False)
        return outputs

    def check_integrity(self) -> None:
        """Let the other side look at its own books."""
        self._drive(plan=False, audit=True)

    def _drive(self, **args: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.worker.call("labkit.arena.scenario:drive", **args)
        if args.get("sampled") is not None:
            self._sampled = None
            ended, wanted = dict(answer["ended"]), dict.fromkeys(self._ended, "length")
            if ended != wanted:
                raise RuleBroken(f"the scheduler ended {ended}; {wanted} had all of their tokens")
            self._ended = set()
        self.kv_cache_manager.num_free_blocks = whole(answer["free_blocks"])
        return answer

    def _read(self, data: Mapping[str, Any]) -> SchedulerOutput:
        """The plan that the other side describes.

        Raises:
            RuleBroken: a request that is scheduled is not described, or not once.
        """
        tokens = {name: whole(count) for name, count in data["tokens"].items()}
        new, known = _rows(data["new"]), _rows(data["known"])
        described = [name for name, _ in new + known]
        if sorted(described) != sorted(tokens) or not tokens.keys() <= self.requests.keys():
            raise RuleBroken(f"the plan schedules {sorted(tokens)} and describes {described}")
        blocks = {name: [whole(i) for i in ids] for name, ids in data["blocks"].items()}
        return SchedulerOutput(
            scheduled_new_reqs=[self._new(name, blocks, computed) for name, computed in new],
            scheduled_cached_reqs=CachedRequestData(
                [name for name, _ in known], [n for _, n in known], set(data["resumed"]), {}
            ),
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
            scheduled_spec_decode_tokens={},
            new_block_ids=blocks,
            preempted_req_ids=list(data["preempted"]),
            finished_req_ids=set(data["finished"]),
            blocks_to_swap_out=_pairs(data["swap_out"]),
            blocks_to_swap_in=_pairs(data["swap_in"]),
            blocks_to_copy=_pairs(data["copy"]),
        )

    def _new(self, name: str, blocks: Mapping[str, list[int]], computed: int) -> NewRequestData:
        self.requests[name].num_computed_tokens = computed
        return NewRequestData.from_request(self.requests[name], blocks.get(name, []))


class RemoteFleetPolicy(FleetPolicy):
    """A fleet policy in another process; what it answers is checked where it is used.

    Args:
        worker: holds one policy at a time; a new one replaces the last.
        target: its class, "package.module:Class".
    """

    def __init__(self, worker: Worker, target: str, prices: Prices) -> None:
        self._worker = worker
        self._ask(begin={"policy": target, "prices": asdict(prices)})

    def place(self, job: Job, prefill: Sequence[View], decode: Sequence[View]) -> Placement:
        first, second = self._ask(place=[list(job), _lists(prefill), _lists(decode)])
        return Placement(None if first is None else whole(first), whole(second))

    def keep(self, keys: Sequence[int]) -> list[int]:
        return [whole(key) for key in self._ask(keep=list(keys))]

    def fetch(self, prompt_len: int, cached_tokens: int, stored_tokens: int) -> int:
        return whole(self._ask(fetch=[prompt_len, cached_tokens, stored_tokens]))

    def _ask(self, **question: Any) -> Any:
        return self._worker.call("labkit.arena.scenario:route", **question)


def _lists(views: Sequence[View]) -> list[list[float]]:
    return [list(view) for view in views]


def whole(value: Any) -> int:
    """A number that is none could be worth anything in a sum."""
    if type(value) is not int:
        raise RuleBroken(f"{value!r} stands in a plan where a whole number belongs")
    return value


def _rows(rows: Any) -> list[tuple[str, int]]:
    return [(str(name), whole(count)) for name, count in rows]


def _pairs(pairs: Any) -> list[tuple[int, int]]:
    return [(whole(source), whole(target)) for source, target in pairs]
