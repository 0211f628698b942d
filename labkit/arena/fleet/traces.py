"""Six traces for a fleet, each with something to win and a trap for a simple policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from labkit.arena.workloads import TOKEN, Arrival, Slo, Text, about, in_order


def block_keys(arrival: Arrival, block: int) -> list[int]:
    """Names of a prompt's full blocks. A name covers all that comes before, too."""
    tokens, names, parent = arrival.tokens(), [], 0
    for end in range(block, len(tokens) + 1, block):
        parent = hash((parent, *tokens[end - block : end]))
        names.append(parent)
    return names


@dataclass(frozen=True)
class Trace:
    """A name, a promise, and who arrives at a fleet of eight machines.

    Attributes:
        story: draws arrivals for ever, at a rate of ``speed`` times what eight machines are for.
    """

    name: str
    about: str
    slo: Slo
    num_requests: int
    story: Callable[[random.Random, float], Iterator[Arrival]]

    def arrivals(
        self, seed: int, num_requests: int | None = None, speed: float = 1.0
    ) -> Iterator[Arrival]:
        """The first requests of the story under this seed."""
        rng = random.Random(f"fleet:{self.name}:{seed}")
        return islice(self.story(rng, speed), num_requests or self.num_requests)


def chat(rng: random.Random, speed: float) -> Iterator[Arrival]:
    """Conversations: every turn repeats all that was said before it."""
    return in_order(_conversations(rng, speed))


def _conversations(rng: random.Random, speed: float) -> Iterator[list[Arrival]]:
    text, now = Text(), 0.0
    while True:
        now += rng.expovariate(CHAT_RATE * speed)
        turns: list[Arrival] = []
        time = now
        history: tuple[Sequence[int], ...] = (text(about(rng, 300, 100, 700)),)
        for _ in range(rng.randint(3, 7)):
            history = (*history, text(about(rng, 60, 16, 200)))
            answer = about(rng, 60, 16, 120)
            turns.append(Arrival(time, history, answer))
            history = (*history, (TOKEN,) * answer)
            time += 0.6 + rng.expovariate(1 / 0.8)
        yield turns


def agents(rng: random.Random, speed: float) -> Iterator[Arrival]:
    """Twelve agents with long instructions of their own, and short tasks."""
    text, now = Text(), 0.0
    instructions = [text(rng.randint(600, 1000)) for _ in range(12)]
    while True:
        now += rng.expovariate(AGENT_RATE * speed)
        task = text(about(rng, 80, 16, 240))
        yield Arrival(now, (rng.choice(instructions), task), about(rng, 40, 8, 100))


def documents(rng: random.Random, speed: float) -> Iterator[Arrival]:
    """Long prompts that come once, among short questions."""
    text, now = Text(), 0.0
    while True:
        now += rng.expovariate(DOCUMENT_RATE * speed)
        if rng.random() < 0.15:
            yield Arrival(now, (text(rng.randint(900, 1800)),), about(rng, 32, 8, 64))
        else:
            yield Arrival(now, (text(about(rng, 60, 16, 200)),), about(rng, 110, 16, 280))


def bursts(rng: random.Random, speed: float) -> Iterator[Arrival]:
    """Hundreds of short questions at once, with answers of a few words, and then a pause."""
    text, now = Text(), 0.0
    while True:
        size = round(rng.randint(420, 520) * speed)
        for time in sorted(now + rng.uniform(0.0, 0.2) for _ in range(size)):
            yield Arrival(time, (text(about(rng, 40, 16, 120)),), about(rng, 5, 2, 12))
        now += 0.2 + rng.uniform(0.6, 1.4) * BURST_PAUSE


def hot(rng: random.Random, speed: float) -> Iterator[Arrival]:
    """Most requests ask about the same text; some others ask about nothing in particular."""
    text, now = Text(), 0.0
    popular = text(1200)
    while True:
        now += rng.expovariate(HOT_RATE * speed)
        question = text(about(rng, 180, 60, 400))
        is_popular = rng.random() < 0.85
        parts = (popular, question) if is_popular else (question,)
        yield Arrival(now, parts, about(rng, 24, 8, 80))


def strangers(rng: random.Random, speed: float) -> Iterator[Arrival]:
    """No request comes twice: whatever is kept is kept for nothing."""
    text, now = Text(), 0.0
    while True:
        now += rng.expovariate(STRANGER_RATE * speed)
        yield Arrival(now, (text(about(rng, 250, 32, 900)),), about(rng, 60, 8, 160))


CHAT_RATE, AGENT_RATE, DOCUMENT_RATE = 15.0, 76.0, 78.0
BURST_PAUSE, HOT_RATE, STRANGER_RATE = 3.0, 50.0, 86.0
"""Arrivals a second (of conversations, for chat), and seconds between bursts."""

_TRACES = (
    Trace("chat", "conversations that repeat their history", Slo(0.5, 0.012), 400, chat),
    Trace("agents", "short tasks below long instructions of twelve kinds",
          Slo(0.5, 0.012), 400, agents),
    Trace("documents", "long new prompts among short questions",
          Slo(0.8, 0.012), 400, documents),
    Trace("bursts", "hundreds of short questions at once, and then a pause",
          Slo(0.25, 0.06), 1000, bursts),
    Trace("hot", "one text that nearly all requests ask about", Slo(0.5, 0.012), 400, hot),
    Trace("strangers", "no request comes twice", Slo(0.5, 0.012), 400, strangers),
)  # fmt: skip
TRACES: dict[str, Trace] = {trace.name: trace for trace in _TRACES}
