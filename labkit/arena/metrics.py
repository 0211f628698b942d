"""What a run gave its users, and what it cost in machine time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from labkit.arena.cost import CostModel
from labkit.arena.simulator import Run, Served
from labkit.arena.workloads import Workload

QUANTILES = (50, 90, 99)


@dataclass(frozen=True)
class Percentiles:
    """Half of all values are at most ``p50``, and so on; linear between neighbours."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        return cls(*(_percentile(sorted(values), percent) for percent in QUANTILES))


@dataclass(frozen=True)
class Figures:
    """One scheduler on one workload. Times are virtual seconds."""

    requests: int
    seconds: float
    steps: int
    tokens_per_second: float
    """Output tokens."""
    ttft: Percentiles
    """Time to the first token."""
    tpot: Percentiles
    """Time per output token after the first."""
    e2e: Percentiles
    """From arrival to the last token."""
    within_slo: float
    """Share of the requests that got both promises of their SLO."""
    within_slo_by_priority: dict[int, float]
    goodput: float
    """Such requests per second."""
    kv_mean: float
    """Share of the blocks that are held, averaged over time."""
    kv_peak: float
    preemptions: int
    recomputed_tokens: int
    swapped_blocks: int
    cached_share: float
    """Share of the prompt tokens that the prefix cache supplied at first admission."""
    fairness: float
    """Jain's index over the slowdowns: 1 if all were slowed down by the same factor, 1/n if one
    of n bore it all."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, rounded to six digits, for JSON."""
        return _rounded(asdict(self))


def figures(run: Run, workload: Workload, cost: CostModel) -> Figures:
    """Evaluate a run."""
    served = run.served
    within = {s.number: meets_slo(s, workload) for s in served}
    num_within = sum(within.values())
    return Figures(
        requests=len(served),
        seconds=run.seconds,
        steps=run.steps,
        tokens_per_second=sum(s.output_len for s in served) / run.seconds,
        ttft=Percentiles.of([s.ttft for s in served]),
        tpot=Percentiles.of([s.tpot for s in served]),
        e2e=Percentiles.of([s.e2e for s in served]),
        within_slo=num_within / len(served),
        within_slo_by_priority=_by_priority(served, within),
        goodput=num_within / run.seconds,
        kv_mean=run.kv_seconds / run.seconds,
        kv_peak=run.kv_peak,
        preemptions=run.preemptions,
        recomputed_tokens=run.recomputed_tokens,
        swapped_blocks=run.swapped_blocks,
        cached_share=run.cached_tokens / sum(s.prompt_len for s in served),
        fairness=jain([s.e2e / cost.alone(s.prompt_len, s.output_len) for s in served]),
    )


def meets_slo(served: Served, workload: Workload) -> bool:
    """Whether a request got both of its promises."""
    slo = workload.slos[served.priority]
    return served.ttft <= slo.ttft and served.tpot <= slo.tpot


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index, ``(Σx)² / (n Σx²)``: from 1/n (one has it all) to 1 (all equal)."""
    total, squares = sum(values), sum(value * value for value in values)
    return total * total / (len(values) * squares)


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """As `numpy.percentile`, to the bit: linear between the two values around the place."""
    place, last = percent / 100 * (len(ordered) - 1), len(ordered) - 1
    below = ordered[int(place)]
    above, share = ordered[min(int(place) + 1, last)], place - int(place)
    if share >= 0.5:
        return above - (above - below) * (1 - share)
    return below + (above - below) * share


def _by_priority(served: Sequence[Served], within: dict[int, bool]) -> dict[int, float]:
    groups: dict[int, list[bool]] = {}
    for s in served:
        groups.setdefault(s.priority, []).append(within[s.number])
    return {priority: sum(group) / len(group) for priority, group in sorted(groups.items())}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _rounded(entry) for key, entry in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value
