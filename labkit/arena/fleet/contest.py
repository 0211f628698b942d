"""Fleet policies over traces: how many requests kept both promises.

A policy from a file runs in a child process with limits, as in :mod:`labkit.arena.contest`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labkit.arena.contest import CHILD_SECONDS, answer_of_child, what_was_raised
from labkit.arena.cost import DEFAULT, load_model
from labkit.arena.fleet.simulator import FleetRun, Link, Machines, prices_of, serve
from labkit.arena.fleet.traces import TRACES, Trace
from labkit.arena.referee import RuleBroken
from labkit.course.root import ROOT
from mini_vllm.json_files import parse_json
from mini_vllm.policies import load_fleet_policy
from mini_vllm.policies.fleet import FLEET_POLICIES, FleetPolicy

LINK_FILE = ROOT / "benchmarks/results/arena/link.json"
BASELINE = "least-loaded"
"""The best of the simple ones over all six traces."""
PREFILL_SHARE = 3 / 8


def load_link(path: Path = LINK_FILE) -> Link:
    """The prices of a transfer between two engines; `python -m benchmarks.bench_link` measures.

    Raises:
        ValueError: the file is missing or holds something else.
    """
    try:
        data = parse_json(path.read_bytes())
        link = Link(float(data["seconds_per"]["trip"]), float(data["seconds_per"]["token"]))
    except FileNotFoundError:
        raise ValueError(
            f"{path}: there is no such file; measure: python -m benchmarks.bench_link --save"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: these are no prices of a link: {error}") from None
    if link.trip < 0 or link.carried < 0:
        raise ValueError(f"{path}: a price is negative")
    return link


def fleet_of(machines: int, prefill: int | None = None) -> Machines:
    """So many machines, three of eight for prompts; the tier grows with them.

    Raises:
        ValueError: there would be no machine that makes tokens.
    """
    first = round(machines * PREFILL_SHARE) if prefill is None else prefill
    if not 0 <= first < machines:
        raise ValueError(
            f"{first} of {machines} machines for prompts; at least one must be left to make tokens"
        )
    return Machines(first, machines - first, tier_blocks=256 * machines)


@dataclass(frozen=True)
class FleetMatch:
    """One policy on one trace under one seed.

    Attributes:
        policy: a name of `FLEET_POLICIES`, or `path/to/file.py:Class`.
        machines: in all; requests come as fast as that many machines are for.
        prefill: of them; None: three of eight.
        requests: None: as many as the trace says, for each eight machines.
        tpot: another promise than the trace's, in seconds for each further token.
    """

    policy: str
    trace: str
    seed: int = 0
    machines: int = 8
    prefill: int | None = None
    requests: int | None = None
    speed: float = 1.0
    tpot: float | None = None
    cost_model: str = str(DEFAULT)
    link: str = str(LINK_FILE)


@dataclass(frozen=True)
class FleetFigures:
    """What users got, and how busy the machines were."""

    requests: int
    in_time: int
    first_in_time: int
    pace_in_time: int
    goodput: float
    """Requests in time, per second and machine."""
    seconds: float
    local: int
    had_share: float
    """Share of the prompt tokens that came from a cache or the tier."""
    prefill_busy: float
    decode_busy: float

    @property
    def share(self) -> float:
        """Of the requests, those that kept both promises."""
        return self.in_time / self.requests


@dataclass(frozen=True)
class FleetOutcome:
    match: FleetMatch
    figures: FleetFigures | None = None
    disqualified: str | None = None


def evaluate(run: FleetRun, trace: Trace, machines: int) -> FleetFigures:
    """Count what was kept of the promises."""
    first = [served.ttft <= trace.slo.ttft for served in run.served]
    pace = [served.tpot <= trace.slo.tpot for served in run.served]
    both = sum(a and b for a, b in zip(first, pace, strict=True))
    return FleetFigures(
        requests=len(run.served),
        in_time=both,
        first_in_time=sum(first),
        pace_in_time=sum(pace),
        goodput=both / run.seconds / machines,
        seconds=run.seconds,
        local=run.local,
        had_share=(run.cached_tokens + run.loaded_tokens) / run.prompt_tokens,
        prefill_busy=run.prefill_busy,
        decode_busy=run.decode_busy,
    )


def play_class(match: FleetMatch, policy: type[FleetPolicy]) -> FleetFigures:
    """Play a match here, with this class. Raises what the policy raises, and RuleBroken."""
    trace, fleet = TRACES[match.trace], fleet_of(match.machines, match.prefill)
    if match.tpot is not None:
        trace = replace(trace, slo=replace(trace.slo, tpot=match.tpot))
    cost, link = load_model(Path(match.cost_model)), load_link(Path(match.link))
    scale = match.machines / 8
    count = match.requests or round(trace.num_requests * scale)
    arrivals = trace.arrivals(match.seed, count, match.speed * scale)
    run = serve(policy(prices_of(cost, link)), trace, arrivals, fleet, cost, link)
    return evaluate(run, trace, match.machines)


def play(match: FleetMatch, seconds: float = CHILD_SECONDS) -> FleetOutcome:
    """Play one match.

    Raises:
        ValueError: there is no such policy, its file cannot be imported, or a number is wrong.
    """
    load_link(Path(match.link))
    load_model(Path(match.cost_model))
    fleet_of(match.machines, match.prefill)
    if match.policy in FLEET_POLICIES:
        answer = _attempt(match, FLEET_POLICIES[match.policy])
    else:
        answer = answer_of_child("labkit.arena.fleet.contest", match, seconds)
    if "wrong" in answer:
        raise ValueError(answer["wrong"])
    if "stopped" in answer:
        return FleetOutcome(match, disqualified=answer["stopped"])
    return FleetOutcome(match, FleetFigures(**answer["figures"]))


def _attempt(match: FleetMatch, policy: type[FleetPolicy]) -> dict[str, Any]:
    try:
        return {"figures": asdict(play_class(match, policy))}
    except RuleBroken as error:
        return {"stopped": f"broke a rule: {error}"}
    except Exception as error:
        return {"stopped": what_was_raised(error)}


def main(argv: Sequence[str]) -> int:
    """The child's side: play the match in the first word, write the answer to the second."""
    match, answer_file = FleetMatch(**json.loads(argv[0])), Path(argv[1])
    try:
        answer: Mapping[str, Any] = _attempt(match, load_fleet_policy(match.policy))
    except ValueError as error:
        answer = {"wrong": str(error)}
    answer_file.write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
