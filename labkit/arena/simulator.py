"""The engine's loop with a virtual clock: the scheduler is real, the forward pass is a duration.

::

    arrivals ──► add_request ──► schedule ──► (clock += cost of the plan) ──► update_from_output
                     ▲                                                              │
                     └────────────── what has arrived in the meantime ◄──────────┘

No model runs: every request gets the same token each time it has computed all that it has. So a
run depends on nothing but the scheduler, the workload, its seed and the cost model, and repeats
exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from labkit.arena.cost import CostModel, step_load
from labkit.arena.referee import Referee, RuleBroken
from labkit.arena.workloads import TOKEN, Arrival, Workload
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import EngineCoreOutput, SchedulerOutput
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

MAX_BARREN_STEPS = 5_000
"""So many steps in a row without a single new token are no progress."""
MAX_SAMPLES = 4_096
"""Points kept of the curve of KV use; when there are more, every second one goes."""

MakeScheduler = Callable[[SchedulerConfig, CacheConfig], Scheduler]


class Served(NamedTuple):
    """A request that has finished. Times are virtual seconds."""

    number: int
    """Place in the order of arrival."""
    priority: int
    prompt_len: int
    output_len: int
    arrived: float
    first_token: float
    finished: float

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.first_token - self.arrived

    @property
    def tpot(self) -> float:
        """Time per output token after the first; 0 if there is only one."""
        return (self.finished - self.first_token) / max(self.output_len - 1, 1)

    @property
    def e2e(self) -> float:
        """Time from arrival to the last token."""
        return self.finished - self.arrived


class Sample(NamedTuple):
    """How things stood during the step that ended then."""

    time: float
    kv_use: float
    """Share of the usable blocks that are held, from 0 to 1."""


@dataclass
class Run:
    """What a scheduler has made of a workload."""

    served: list[Served] = field(default_factory=list)
    seconds: float = 0.0
    """Virtual time of the last token."""
    steps: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    """Computed a second time, after a preemption."""
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache supplied when their request first ran."""
    preemptions: int = 0
    swapped_blocks: int = 0
    kv_seconds: float = 0.0
    """Share of the blocks that are held, summed over time."""
    kv_peak: float = 0.0
    samples: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class Flight:
    """A request on its way through the scheduler."""

    number: int
    arrival: Arrival
    request: Request
    first_token: float = -1.0
    num_tokens: int = 0
    """Output tokens it has been given."""
    num_cached: int = 0
    num_computed: int = 0
    """Tokens computed for it, those of a second time included."""


def simulate(
    make_scheduler: MakeScheduler,
    workload: Workload,
    arrivals: Iterable[Arrival],
    cost: CostModel,
    check_every: int = 64,
    tick: Callable[[], object] = lambda: None,
) -> Run:
    """Serve all arrivals.

    Args:
        make_scheduler: the class, or anything that makes a scheduler from its two configurations.
        workload: limits of the scheduler and size of the cache.
        arrivals: in the order of their times.
        cost: how long steps take.
        check_every: how often the referee checks thoroughly; 0: no referee at all.
        tick: called for every request that has finished.

    Raises:
        RuleBroken: the scheduler broke a rule, lost a request, or makes no progress.
        Exception: whatever the scheduler itself raises.
    """
    referee = Referee(workload.scheduler, workload.cache, check_every) if check_every else None
    scheduler = make_scheduler(workload.scheduler, workload.cache)
    return Simulation(scheduler, workload, arrivals, cost, referee, tick).run()


class Simulation:
    """One scheduler on its way through one workload; see :func:`simulate`."""

    def __init__(
        self,
        scheduler: Scheduler,
        workload: Workload,
        arrivals: Iterable[Arrival],
        cost: CostModel,
        referee: Referee | None,
        tick: Callable[[], object],
    ) -> None:
        assert workload.cache.num_gpu_blocks is not None
        self.now = 0.0
        self.scheduler = scheduler
        if hasattr(scheduler, "clock"):  # V0 delays prompts by the age of the oldest
            scheduler.clock = lambda: self.now
        self.num_blocks = workload.cache.num_gpu_blocks - 1
        self.arrivals = iter(arrivals)
        self.cost = cost
        self.referee = referee
        self.tick = tick
        self.next = next(self.arrivals, None)
        self.flights: dict[str, Flight] = {}
        self.num_arrived = 0
        self.barren_steps = 0
        self.result = Run()
        self._params: dict[int, SamplingParams] = {}
        self._sample_stride = 1

    def run(self) -> Run:
        """Step until all requests are served."""
        while self._deliver():
            self._step()
        free = self.scheduler.kv_cache_manager.num_free_blocks
        if free != self.num_blocks:
            raise RuleBroken(f"at the end {free} of {self.num_blocks} blocks are free")
        self.result.seconds = self.now
        return self.result

    # ------------------------------------------------------------------ arrivals

    def _deliver(self) -> bool:
        """Hand over all that have arrived by now. With none there, time passes until the
        next arrival; False if there is none."""
        if not self.flights and self.next is not None and self.next.time > self.now:
            self.now = self.next.time
            self.result.samples.append(Sample(self.now, 0.0))
        while self.next is not None and self.next.time <= self.now:
            self._add(self.next)
            self.next = next(self.arrivals, None)
        return bool(self.flights)

    def _add(self, arrival: Arrival) -> None:
        number, self.num_arrived = self.num_arrived, self.num_arrived + 1
        request_id = f"r{number}"
        request = Request(
            request_id,
            arrival.tokens(),
            self._sampling_params(arrival.max_tokens),
            priority=arrival.priority,
            arrival_time=arrival.time,
        )
        self.flights[request_id] = Flight(number, arrival, request)
        if self.referee:
            self.referee.add(request_id, request.prompt_token_ids)
        self.scheduler.add_request(request)

    def _sampling_params(self, max_tokens: int) -> SamplingParams:
        """One object for all requests of a length: checking its fields costs more than a step."""
        if max_tokens not in self._params:
            self._params[max_tokens] = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        return self._params[max_tokens]

    # ------------------------------------------------------------------ one step

    def _step(self) -> None:
        plan = self.scheduler.schedule()
        if self.referee:
            self.referee.watch(plan, self.scheduler)
        load = step_load(plan)
        seconds = self.cost.seconds(load)
        self.now += seconds
        self._count(plan, seconds)
        sampled = self._sample(plan)
        self.barren_steps = 0 if sampled else self.barren_steps + 1
        if self.barren_steps > MAX_BARREN_STEPS:
            raise RuleBroken(
                f"{MAX_BARREN_STEPS} steps in a row brought no token; "
                f"{len(self.flights)} requests wait, the first is {next(iter(self.flights))}"
            )
        for output in self.scheduler.update_from_output(plan, sampled):
            if output.finish_reason is not None:
                self._land(output)

    def _sample(self, plan: SchedulerOutput) -> dict[str, list[int]]:
        """A token for every scheduled request that has now computed all it has."""
        sampled = {}
        for new in plan.scheduled_new_reqs:
            self.flights[new.req_id].num_cached = new.num_computed_tokens
        for request_id, count in plan.num_scheduled_tokens.items():
            flight = self.flights[request_id]
            flight.num_computed += count
            if flight.request.num_computed_tokens >= len(flight.request.all_token_ids):
                sampled[request_id] = [TOKEN]
                flight.num_tokens += 1
                if flight.num_tokens == 1:
                    flight.first_token = self.now
                if self.referee:
                    self.referee.append(request_id, TOKEN)
        return sampled

    def _land(self, output: EngineCoreOutput) -> None:
        """A request has finished: check that it has got all it asked for, and write it down."""
        flight = self.flights.pop(output.request_id)
        arrival, wanted = flight.arrival, flight.arrival.max_tokens
        got = flight.request.output_token_ids
        if flight.num_tokens != wanted or got != [TOKEN] * wanted:
            raise RuleBroken(
                f"{output.request_id} ended ({output.finish_reason}) with {len(got)} of {wanted} "
                "tokens"
            )
        needed = arrival.prompt_len + wanted - 1 - flight.num_cached
        self.result.recomputed_tokens += max(0, flight.num_computed - needed)
        self.result.cached_tokens += flight.num_cached
        self.result.served.append(
            Served(
                flight.number,
                arrival.priority,
                arrival.prompt_len,
                wanted,
                arrival.time,
                flight.first_token,
                self.now,
            )
        )
        self.tick()

    def _count(self, plan: SchedulerOutput, seconds: float) -> None:
        """Add one step to the totals and to the curve of KV use."""
        result = self.result
        result.steps += 1
        result.computed_tokens += plan.total_num_scheduled_tokens
        result.preemptions += len(plan.preempted_req_ids)
        result.swapped_blocks += len(plan.blocks_to_swap_out) + len(plan.blocks_to_swap_in)
        kv_use = 1.0 - self.scheduler.kv_cache_manager.num_free_blocks / self.num_blocks
        result.kv_seconds += kv_use * seconds
        result.kv_peak = max(result.kv_peak, kv_use)
        if result.steps % self._sample_stride == 0:
            result.samples.append(Sample(self.now, kv_use))
            if len(result.samples) > MAX_SAMPLES:
                del result.samples[::2]
                self._sample_stride *= 2
