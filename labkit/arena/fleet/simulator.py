"""A fleet with a virtual clock: machines of two kinds, links between them, and a tier for all.

::

    arrivals ──► policy ──► prefill machines: prompts in order of arrival
                   │             │ link: fixed + bytes
                   └──────► decode machines: V1's steps, chunks of prompts beside all tokens

Every machine pays the arena's prices (:mod:`labkit.arena.cost`); a link pays those that
`python -m benchmarks.bench_link` measured between two engines. A prefill machine's future is known
when a prompt is given to it, so it is two numbers. A decode machine is brought up to date when
it is looked at. Nothing is drawn by chance but the story, so a run repeats exactly.

What is left out: layers that travel while others are computed, machines that fail, and users who
go away.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from labkit.arena.cost import CostModel, StepLoad
from labkit.arena.fleet.traces import Trace, block_keys
from labkit.arena.referee import RuleBroken
from labkit.arena.simulator import Served
from labkit.arena.workloads import Arrival
from mini_vllm.policies.fleet import FleetPolicy, Job, Placement, Prices, View

BLOCK = 16
MAX_ROWS = 64
CHUNK = 256
"""Tokens of prompts in one step of a decode machine, at most."""
MAX_SEEN = 8
"""Machines of a kind that the policy is shown. A large fleet draws them for each request."""


@dataclass(frozen=True, slots=True)
class Link:
    """Seconds for a transfer, and for each token that it carries."""

    trip: float
    carried: float


@dataclass(frozen=True, slots=True)
class Machines:
    """How large the fleet is. Sizes in blocks of 16 tokens."""

    prefill: int
    decode: int
    cache_blocks: int = 1024
    tier_blocks: int = 2048


def prices_of(cost: CostModel, link: Link) -> Prices:
    """The prices as a policy knows them."""
    p = dict(zip(StepLoad._fields, cost.prices, strict=True))
    return Prices(
        prompt=p["step"] + p["prefills"],
        token=p["prefill_tokens"],
        pair=p["prefill_pairs"],
        trip=link.trip,
        carried=link.carried,
        step=p["step"],
        row=p["decodes"],
        context=p["decode_context"],
    )


class Blocks:
    """A cache of blocks by key, the least recently used goes first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.keys: OrderedDict[int, None] = OrderedDict()

    def leading(self, keys: Sequence[int]) -> int:
        """How many blocks of a prompt's beginning are here."""
        for index, key in enumerate(keys):
            if key not in self.keys:
                return index
        return len(keys)

    def add(self, keys: Sequence[int]) -> int:
        """Put them in, or make them young; the prompt's beginning is the youngest. How many were
        new."""
        new = 0
        for key in reversed(keys):
            new += key not in self.keys
            self.keys[key] = None
            self.keys.move_to_end(key)
        while len(self.keys) > self.capacity:
            self.keys.popitem(last=False)
        return new


@dataclass(slots=True)
class Flight:
    """A request on its way."""

    number: int
    arrival: Arrival
    computed: int
    """Tokens of the prompt whose KV is there, or on its way."""
    first_token: float = -1.0
    left: int = 0
    """Tokens that it is still to make."""

    @property
    def total(self) -> int:
        return self.arrival.prompt_len + self.arrival.max_tokens


class PrefillMachine:
    """Computes prompts in the order of arrival, and sends them away over its link."""

    def __init__(self, cost: CostModel, cache_blocks: int) -> None:
        self.cost = cost
        self.cache = Blocks(cache_blocks)
        self.free_at = 0.0
        self.link_free_at = 0.0
        self.busy_seconds = 0.0

    def view(self, now: float, keys: Sequence[int]) -> View:
        cached = self.cache.leading(keys) * BLOCK
        return View(cached, max(self.free_at - now, 0.0), 0, 0)

    def compute(self, now: float, prompt_len: int, cached: int, load_seconds: float) -> float:
        """When the prompt's KV is complete here."""
        new = max(prompt_len - cached, 1)
        step = 0 if self.free_at > now else 1  # who waits shares a step with those before
        seconds = load_seconds + self.cost.seconds(StepLoad(step, 1, new, new * prompt_len))
        self.free_at = max(now, self.free_at) + seconds
        self.busy_seconds += seconds
        return self.free_at

    def send(self, ready: float, seconds: float) -> float:
        """When something that may leave at ``ready`` has arrived."""
        self.link_free_at = max(ready, self.link_free_at) + seconds
        return self.link_free_at


class DecodeMachine:
    """Steps as V1 makes them: a token for all who run, and prompts as far as a chunk goes."""

    def __init__(self, cost: CostModel, cache_blocks: int, land: Callable[..., None]) -> None:
        self.cost = cost
        self.cache = Blocks(cache_blocks)
        self.room = cache_blocks * BLOCK
        self.land = land
        self.now = 0.0
        self.link_free_at = 0.0
        self.coming: list[tuple[float, int, Flight]] = []
        self.waiting: deque[Flight] = deque()
        self.prompts: deque[Flight] = deque()
        """Those whose prompts are computed here, in order."""
        self.running: list[Flight] = []
        self.context = 0
        self.busy_seconds = 0.0
        self.claimed = 0
        """Tokens of all requests that were given to it."""
        self.held = 0
        """Tokens of all requests that were admitted."""

    def view(self, now: float, keys: Sequence[int]) -> View:
        self.advance(now)
        cached = self.cache.leading(keys) * BLOCK
        behind = [*self.prompts, *self.waiting, *(flight for _, _, flight in self.coming)]
        seconds = sum(map(self._prompt_seconds, behind))
        held = self.context + sum(flight.arrival.prompt_len for flight in behind)
        free = self.room - self.claimed
        return View(cached, seconds, len(self.running) + len(behind), free, held)

    def give(self, ready: float, flight: Flight) -> None:
        """A request that may begin at ``ready``."""
        heapq.heappush(self.coming, (ready, flight.number, flight))
        self.claimed += flight.total

    def _prompt_seconds(self, flight: Flight) -> float:
        """What is left of its prompt, in steps that others pay for."""
        length = flight.arrival.prompt_len
        new = length - flight.computed
        return self.cost.seconds(StepLoad(0, 1, new, new * length)) if new else 0.0

    def advance(self, until: float) -> None:
        """Make all steps that begin before ``until``."""
        while self.now < until:
            if not self._anybody():
                if not self.coming or self.coming[0][0] >= until:
                    self.now = until
                    return
                self.now = max(self.now, self.coming[0][0])
            self._admit()
            self._steps(until)

    def _anybody(self) -> bool:
        return bool(self.running or self.prompts or self.waiting)

    def _admit(self) -> None:
        """The requests that are here, as far as rows and room go, in order of arrival."""
        while self.coming and self.coming[0][0] <= self.now:
            self.waiting.append(heapq.heappop(self.coming)[2])
        while self.waiting and len(self.running) + len(self.prompts) < MAX_ROWS:
            flight = self.waiting[0]
            if self.held + flight.total > self.room and self.held:
                return
            self.waiting.popleft()
            self.held += flight.total
            if flight.computed < flight.arrival.prompt_len:
                self.prompts.append(flight)
            else:  # its KV is here: it only makes tokens
                self.running.append(flight)
                self.context += flight.arrival.prompt_len

    def _steps(self, until: float) -> None:
        """One step with prompts; or many without, for nothing changes in between."""
        rows = len(self.running)
        if self.prompts:
            return self._step_with_prompts(rows)
        if not rows:
            return
        load = StepLoad(1, 0, 0, 0, rows, self.context + rows)
        end = min(until, self.coming[0][0]) if self.coming else until
        fitting = (end - self.now) / self.cost.seconds(load)
        steps = min(flight.left for flight in self.running)
        if fitting < steps:
            steps = max(int(fitting), 1)
        if any(flight.first_token < 0 for flight in self.running):
            steps = 1
        # steps 1..n: the context grows by a token a row in each
        growth = rows * (steps * (steps - 1) // 2)
        whole = StepLoad(steps, 0, 0, 0, steps * rows, steps * (self.context + rows) + growth)
        self._pass(whole, steps)

    def _step_with_prompts(self, rows: int) -> None:
        left, tokens, pairs, touched, done = CHUNK, 0, 0, 0, 0
        for flight in self.prompts:
            count = min(left, flight.arrival.prompt_len - flight.computed)
            if count == 0:
                break
            flight.computed += count
            left, tokens, pairs = left - count, tokens + count, pairs + count * flight.computed
            touched += 1
            done += flight.computed == flight.arrival.prompt_len
        self._pass(StepLoad(1, touched, tokens, pairs, rows, self.context + rows), 1)
        for _ in range(done):
            flight = self.prompts.popleft()
            self.context += flight.arrival.prompt_len + 1
            self.running.append(flight)
            self._token(flight)
            if not flight.left:
                self._leave(flight)

    def _pass(self, load: StepLoad, steps: int) -> None:
        """Time passes, and each running request gets so many tokens."""
        seconds = self.cost.seconds(load)
        self.now += seconds
        self.busy_seconds += seconds
        for flight in list(self.running):
            self.context += steps
            self._token(flight, steps)
            if not flight.left:
                self._leave(flight)

    def _leave(self, flight: Flight) -> None:
        self.running.remove(flight)
        self.context -= flight.total
        self.held -= flight.total
        self.claimed -= flight.total
        self.land(flight, self.now)

    def _token(self, flight: Flight, count: int = 1) -> None:
        if flight.first_token < 0:
            flight.first_token = self.now
        flight.left -= count


@dataclass
class FleetRun:
    """What became of all requests."""

    served: list[Served] = field(default_factory=list)
    seconds: float = 0.0
    local: int = 0
    """Requests whose prompt the decode machine computed."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    loaded_tokens: int = 0
    stored_tokens: int = 0
    prefill_busy: float = 0.0
    """Share of the time that prefill machines worked."""
    decode_busy: float = 0.0


class Fleet:
    """One policy, some machines, one trace; see :func:`serve`."""

    def __init__(
        self, policy: FleetPolicy, trace: Trace, machines: Machines, cost: CostModel, link: Link
    ) -> None:
        self.policy, self.trace, self.machines, self.link = policy, trace, machines, link
        cache = machines.cache_blocks
        self.prefill = [PrefillMachine(cost, cache) for _ in range(machines.prefill)]
        self.decode = [DecodeMachine(cost, cache, self._land) for _ in range(machines.decode)]
        self.tier = Blocks(machines.tier_blocks)
        self.draw = random.Random(0)
        self.result = FleetRun()

    def run(self, arrivals: Iterable[Arrival]) -> FleetRun:
        count = 0
        for number, arrival in enumerate(arrivals):
            self._arrive(number, arrival)
            count += 1
        for machine in self.decode:
            machine.advance(float("inf"))
        result = self.result
        if len(result.served) != count:
            raise RuleBroken(f"{count - len(result.served)} of {count} requests were not served")
        result.seconds = max(served.finished for served in result.served)
        for name, group in (("prefill_busy", self.prefill), ("decode_busy", self.decode)):
            busy = sum(machine.busy_seconds for machine in group)
            setattr(result, name, busy / (result.seconds * max(len(group), 1)))
        return result

    def _arrive(self, number: int, arrival: Arrival) -> None:
        keys = block_keys(arrival, BLOCK)
        prefill = self._seen(self.prefill, keys)
        decode = self._seen(self.decode, keys)
        job = Job(arrival.prompt_len, self.trace.slo.ttft, self.trace.slo.tpot)
        placement = self.policy.place(
            job,
            [machine.view(arrival.time, keys) for machine in prefill],
            [machine.view(arrival.time, keys) for machine in decode],
        )
        first, second = _machines(placement, prefill, decode)
        flight = Flight(number, arrival, 0, left=arrival.max_tokens)
        if first is None:
            self._local(flight, second, keys)
        else:
            self._remote(flight, first, second, keys)

    def _seen(self, machines: list, keys: Sequence[int]) -> list:
        """All machines of a small fleet. Of a large one a few: those that have most of the prompt
        among some, and others by chance."""
        if len(machines) <= MAX_SEEN:
            return machines
        home = keys[0] % len(machines) if keys else 0  # a prefix has a neighbourhood
        near = [machines[(home + i) % len(machines)] for i in range(MAX_SEEN // 2)]
        others = self.draw.sample(machines, MAX_SEEN // 2)
        return list(dict.fromkeys([*near, *others]))

    def _remote(
        self, flight: Flight, first: PrefillMachine, second: DecodeMachine, keys: Sequence[int]
    ) -> None:
        arrival = flight.arrival
        cached, loaded = self._had(first.cache, arrival, keys)
        seconds = self._carry(loaded) if loaded else 0.0
        ready = first.compute(arrival.time, arrival.prompt_len, cached + loaded, seconds)
        first.cache.add(keys)
        carried = arrival.prompt_len - second.cache.leading(keys) * BLOCK
        arrived = first.send(ready, self._carry(carried))
        stored = self._store(keys)
        if stored:
            first.send(ready, self._carry(stored))
        second.cache.add(keys)
        flight.computed = arrival.prompt_len
        second.give(arrived, flight)

    def _local(self, flight: Flight, machine: DecodeMachine, keys: Sequence[int]) -> None:
        arrival, ready = flight.arrival, flight.arrival.time
        cached, loaded = self._had(machine.cache, arrival, keys)
        if loaded:
            ready = max(ready, machine.link_free_at) + self._carry(loaded)
            machine.link_free_at = ready
        stored = self._store(keys)
        if stored:
            machine.link_free_at = max(ready, machine.link_free_at) + self._carry(stored)
        machine.cache.add(keys)
        self.result.local += 1
        # One token is always computed: without it there is no next one.
        flight.computed = min(cached + loaded, arrival.prompt_len - 1)
        machine.give(ready, flight)

    def _had(self, cache: Blocks, arrival: Arrival, keys: Sequence[int]) -> tuple[int, int]:
        """Tokens that need no computing: from the machine's cache, and from the tier."""
        cached = cache.leading(keys) * BLOCK
        stored = self.tier.leading(keys) * BLOCK
        loaded = self.policy.fetch(arrival.prompt_len, cached, stored)
        if loaded not in range(max(stored - cached, 0) + 1):
            raise RuleBroken(f"fetch asks for {loaded} tokens; the tier has {stored - cached} more")
        self.result.prompt_tokens += arrival.prompt_len
        self.result.cached_tokens += cached
        self.result.loaded_tokens += loaded
        return cached, loaded

    def _store(self, keys: Sequence[int]) -> int:
        """How many tokens go to the tier."""
        wanted = set(self.policy.keep(keys))
        if not wanted <= set(keys):
            raise RuleBroken("keep returns a block that is not the prompt's")
        new = self.tier.add([key for key in keys if key in wanted]) * BLOCK
        self.result.stored_tokens += new
        return new

    def _carry(self, num_tokens: int) -> float:
        return self.link.trip + num_tokens * self.link.carried

    def _land(self, flight: Flight, now: float) -> None:
        arrival = flight.arrival
        served = Served(
            flight.number, 0, arrival.prompt_len, arrival.max_tokens, arrival.time,
            flight.first_token, now,
        )  # fmt: skip
        self.result.served.append(served)


def _machines(
    placement: object, prefill: Sequence[PrefillMachine], decode: Sequence[DecodeMachine]
) -> tuple[PrefillMachine | None, DecodeMachine]:
    """Those that a placement names.

    Raises:
        RuleBroken: it names none.
    """
    try:
        first, second = Placement(*placement)  # type: ignore[misc]
        if first is not None and first not in range(len(prefill)):
            raise ValueError
        if second not in range(len(decode)):
            raise ValueError
    except (TypeError, ValueError):
        raise RuleBroken(
            f"place returned {placement!r}; there are {len(prefill)} prefill machines (or None) "
            f"and {len(decode)} decode machines"
        ) from None
    return (None if first is None else prefill[first]), decode[second]


def serve(
    policy: FleetPolicy,
    trace: Trace,
    arrivals: Iterable[Arrival],
    machines: Machines,
    cost: CostModel,
    link: Link,
) -> FleetRun:
    """Let a fleet serve all arrivals.

    Raises:
        RuleBroken: the policy names a machine, a block or tokens that do not exist.
    """
    return Fleet(policy, trace, machines, cost, link).run(arrivals)
