"""Who arrives when, with which prompt: seven small worlds, each drawn from a seed.

The rates and promises are cut to the bundled model on one CPU core, whose prices
`benchmarks/results/arena/cost_model.json` holds: each workload brings that machine near its limit
in a way of its own. With other prices cut them anew: the same requests would press
no scheduler, or all.

A prompt is a few pieces of text, and a piece is a `range` of token ids. Equal ranges are equal
text, and a range costs no memory until its request arrives, so 100,000 prompts are cheap. No model
looks at the ids.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, islice

from mini_vllm.config import CacheConfig, SchedulerConfig

TOKEN = 0
"""What the fake model says, always. It is in no range of text."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, before it arrives."""

    time: float
    parts: tuple[Sequence[int], ...]
    """The prompt, in pieces."""
    max_tokens: int
    """It will get exactly so many: the fake model never says EOS."""
    priority: int = 0

    @property
    def prompt_len(self) -> int:
        return sum(map(len, self.parts))

    def tokens(self) -> list[int]:
        """The prompt as token ids."""
        return list(chain.from_iterable(self.parts))


@dataclass(frozen=True, slots=True)
class Slo:
    """A promise to users (service level objective); a request counts if it holds both."""

    ttft: float
    """Seconds from arrival to the first token, at most."""
    tpot: float
    """Seconds per token after the first, at most, on average over the request."""


@dataclass(frozen=True)
class Workload:
    """A name, a story, the limits of the scheduler, the size of the cache, and who arrives.

    Attributes:
        slos: by priority; every priority that the story uses has one.
        num_requests: how many are served unless one asks for more or fewer.
        story: draws arrivals for ever, in the order of their times.
    """

    name: str
    about: str
    scheduler: SchedulerConfig
    cache: CacheConfig
    slos: Mapping[int, Slo]
    num_requests: int
    story: Callable[[random.Random], Iterator[Arrival]]

    def arrivals(self, seed: int, num_requests: int | None = None) -> Iterator[Arrival]:
        """The first requests of the story under this seed; the same ones every time."""
        rng = random.Random(f"{self.name}:{seed}")
        return islice(self.story(rng), num_requests or self.num_requests)


class Text:
    """Gives out token ids, each of them once."""

    def __init__(self) -> None:
        self._next = TOKEN + 1

    def __call__(self, length: int) -> range:
        start, self._next = self._next, self._next + length
        return range(start, self._next)


def about(rng: random.Random, median: int, low: int, high: int) -> int:
    """A length: log-normal, as those of real prompts and answers are, cut to ``[low, high]``."""
    return min(max(int(rng.lognormvariate(math.log(median), 0.5)), low), high)


# ------------------------------------------------------------------ stories


def steady(rng: random.Random) -> Iterator[Arrival]:
    """Independent short questions, at exponential distances (a Poisson process)."""
    text, now = Text(), 0.0
    while True:
        now += rng.expovariate(41.0)
        yield Arrival(now, (text(about(rng, 100, 16, 400)),), about(rng, 40, 8, 120))


def bursts(rng: random.Random) -> Iterator[Arrival]:
    """30 to 60 requests within a tenth of a second, and then a pause. Those of one burst are the
    cases of one task: the same instructions come first in each, and no cache has them."""
    text, now = Text(), 0.0
    while True:
        instructions = text(256)
        for time in sorted(now + rng.uniform(0.0, 0.1) for _ in range(rng.randint(30, 60))):
            case = text(about(rng, 60, 16, 240))
            yield Arrival(time, (instructions, case), about(rng, 40, 8, 120))
        now += 0.1 + rng.expovariate(1 / 3.0)


def chat(rng: random.Random) -> Iterator[Arrival]:
    """Conversations of a few turns. All begin with one of four system prompts, and every turn
    repeats what was said before it."""
    text = Text()
    systems = [text(length) for length in (240, 320, 400, 480)]
    return in_order(conversations(rng, text, systems))


def conversations(
    rng: random.Random, text: Text, systems: Sequence[range]
) -> Iterator[list[Arrival]]:
    """Conversation after conversation, in the order of their first turns.

    The next turn comes after a time of reading and thinking, even if the last answer is late.
    """
    now = 0.0
    while True:
        now += rng.expovariate(7.0)
        turns: list[Arrival] = []
        time = now
        history: tuple[Sequence[int], ...] = (rng.choice(systems),)
        for _ in range(rng.randint(2, 6)):
            history = (*history, text(about(rng, 40, 8, 160)))
            answer = about(rng, 40, 8, 120)
            turns.append(Arrival(time, history, answer))
            history = (*history, (TOKEN,) * answer)
            time += 2.0 + rng.expovariate(1 / 4.0)
        yield turns


def in_order(groups: Iterator[list[Arrival]]) -> Iterator[Arrival]:
    """Merge groups of arrivals that overlap. Groups come in the order of their first arrival."""
    heap: list[tuple[float, int, Arrival]] = []
    count = 0
    for group in groups:
        while heap and heap[0][0] <= group[0].time:
            yield heapq.heappop(heap)[2]
        for arrival in group:
            heapq.heappush(heap, (arrival.time, count, arrival))
            count += 1


def documents(rng: random.Random) -> Iterator[Arrival]:
    """Short questions, and now and then a document of 900 to 1,800 tokens with a short summary."""
    text, now = Text(), 0.0
    while True:
        now += rng.expovariate(18.0)
        if rng.random() < 0.1:
            yield Arrival(now, (text(rng.randint(900, 1800)),), about(rng, 24, 8, 48))
        else:
            yield Arrival(now, (text(about(rng, 48, 8, 160)),), about(rng, 48, 16, 120))


def pressure(rng: random.Random) -> Iterator[Arrival]:
    """Short prompts with long answers: sequences outgrow a cache that admitted them gladly."""
    text, now = Text(), 0.0
    while True:
        now += rng.expovariate(16.0)
        yield Arrival(now, (text(about(rng, 60, 16, 160)),), about(rng, 160, 64, 400))


def priorities(rng: random.Random) -> Iterator[Arrival]:
    """Urgent questions of people (priority 0) among the bulk of a batch job (priority 1), which
    hands in 40 at a time."""
    text = Text()
    bulk = batch_jobs(random.Random(rng.random()), text)
    urgent = questions(random.Random(rng.random()), text)
    return heapq.merge(bulk, urgent, key=lambda arrival: arrival.time)


def batch_jobs(rng: random.Random, text: Text) -> Iterator[Arrival]:
    now = 2.0
    while True:
        for _ in range(40):
            yield Arrival(now, (text(about(rng, 200, 64, 600)),), about(rng, 80, 32, 160), 1)
        now += rng.uniform(3.0, 4.5)


def questions(rng: random.Random, text: Text) -> Iterator[Arrival]:
    now = 0.0
    while True:
        now += rng.expovariate(8.0)
        yield Arrival(now, (text(about(rng, 48, 8, 160)),), about(rng, 32, 8, 80), 0)


def agents(rng: random.Random) -> Iterator[Arrival]:
    """Programs that work on a task: think, call a tool, read its result, think again. All begin
    with one description of the tools. Once in a task an agent forks: it follows three plans at the
    same time, whose prompts are equal up to the plan."""
    text = Text()
    tools = text(640)
    return in_order(tasks(rng, text, tools))


def tasks(rng: random.Random, text: Text, tools: range) -> Iterator[list[Arrival]]:
    """Task after task, in the order of their first turns."""
    now = 0.0
    while True:
        now += rng.expovariate(1.9)
        path = _Path(now, (tools, text(about(rng, 80, 16, 200))))
        turns = path.walk(rng, text, rng.randint(1, 2))
        for _ in range(3):
            branch = _Path(path.time, (*path.history, text(12)))
            turns += branch.walk(rng, text, rng.randint(1, 3))
        yield turns


@dataclass
class _Path:
    """An agent on its way: when it asks next, and all that stands before its next thought."""

    time: float
    history: tuple[Sequence[int], ...]

    def walk(self, rng: random.Random, text: Text, num_turns: int) -> list[Arrival]:
        """So many turns; each result of a tool comes some time after the call was written."""
        turns = []
        for _ in range(num_turns):
            answer = about(rng, 32, 8, 96)
            turns.append(Arrival(self.time, self.history, answer))
            self.time += 1.0 + rng.expovariate(1 / 2.0)
            self.history = (*self.history, (TOKEN,) * answer, text(about(rng, 90, 16, 240)))
        return turns


# ------------------------------------------------------------------ the worlds

LIMITS = SchedulerConfig(max_num_batched_tokens=2048, max_num_seqs=64, max_model_len=2048)
"""The budget holds any sequence whole, so that policies that cannot split one can run too."""
ROOMY = CacheConfig(block_size=16, num_gpu_blocks=1025, num_cpu_blocks=512)
TIGHT = CacheConfig(block_size=16, num_gpu_blocks=257, num_cpu_blocks=512)

_WORLDS = (
    Workload(
        "steady",
        "short questions, one after the other",
        LIMITS, ROOMY, {0: Slo(ttft=0.3, tpot=0.03)}, 400, steady,
    ),
    Workload(
        "bursts",
        "30 to 60 cases of one task at once, with the same instructions in front",
        LIMITS, ROOMY, {0: Slo(ttft=0.9, tpot=0.04)}, 400, bursts,
    ),
    Workload(
        "chat",
        "conversations that share system prompts and repeat their history",
        LIMITS, ROOMY, {0: Slo(ttft=0.3, tpot=0.03)}, 400, chat,
    ),
    Workload(
        "documents",
        "long documents among short questions",
        replace(LIMITS, long_prefill_token_threshold=256),
        ROOMY, {0: Slo(ttft=0.25, tpot=0.02)}, 400, documents,
    ),
    Workload(
        "pressure",
        "long answers in a small cache",
        LIMITS, TIGHT, {0: Slo(ttft=1.2, tpot=0.03)}, 300, pressure,
    ),
    Workload(
        "priorities",
        "urgent questions among the bulk of batch jobs",
        replace(LIMITS, policy="priority", max_num_seqs=32),
        replace(ROOMY, num_gpu_blocks=513), {0: Slo(ttft=0.3, tpot=0.03), 1: Slo(18.0, 0.12)}, 400,
        priorities,
    ),
    Workload(
        "agents",
        "agents that call tools, and fork into three plans with the same prefix",
        LIMITS, replace(ROOMY, num_gpu_blocks=513), {0: Slo(ttft=0.4, tpot=0.03)}, 400, agents,
    ),
)  # fmt: skip
WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _WORLDS}


def find_workload(name: str) -> Workload:
    """The workload of that name.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    if name not in WORKLOADS:
        near = get_close_matches(name, WORKLOADS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(WORKLOADS)}"
        raise ValueError(f"there is no workload {name!r}; {hint}")
    return WORKLOADS[name]
