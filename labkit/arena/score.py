"""The grade of the capstone: a policy's goodput against that of `vllm-v1`, on the same arrivals.

Every step is checked thoroughly: budgets, block tables, shadow KV, the conservation of blocks and
the scheduler's own `check_integrity`; and every request must get all of its tokens. A
scheduler that breaks a rule under one seed has the score 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.arena.contest import BASELINE, CHILD_SECONDS, Match, play
from labkit.arena.cost import DEFAULT
from labkit.arena.workloads import find_workload


@dataclass(frozen=True)
class SeedScore:
    """Goodput under one seed, in requests per second within their SLO."""

    seed: int
    goodput: float
    baseline: float


@dataclass(frozen=True)
class Score:
    """How a policy did.

    Attributes:
        rows: one for each seed that was played to its end.
        disqualified: what it did, under which seed, that no policy may do; None if nothing.
    """

    policy: str
    workload: str
    rows: tuple[SeedScore, ...]
    disqualified: str | None = None

    @property
    def ratio(self) -> float:
        """Goodput over all seeds, divided by that of `vllm-v1`: above 1 is better. 0 if a rule
        was broken."""
        if self.disqualified is not None:
            return 0.0
        return sum(row.goodput for row in self.rows) / sum(row.baseline for row in self.rows)


def score(
    policy: str,
    workload: str,
    seeds: Sequence[int],
    requests: int | None = None,
    cost_model: Path = DEFAULT,
    seconds: float = CHILD_SECONDS,
    tick: Callable[[], object] = lambda: None,
) -> Score:
    """Play `policy` and `vllm-v1` on one workload under each seed.

    Args:
        policy: a name of `contest.ENTRANTS`, or `path/to/file.py:Class`.
        seeds: at least one.
        requests: how many arrive under each seed; None: as many as the workload says.
        seconds: the time that a policy from a file may take for each seed.
        tick: called for every request that is served.

    Raises:
        ValueError: there is no such policy or workload, or no seed.
    """
    if not seeds:
        raise ValueError("seeds is empty; name at least one")
    count = requests or find_workload(workload).num_requests
    rows: list[SeedScore] = []
    for seed in seeds:
        theirs, ours = (
            play(Match(name, workload, seed, count, str(cost_model), 1), tick, seconds)
            for name in (policy, BASELINE)
        )
        if theirs.figures is None:
            why = f"{theirs.disqualified} (seed {seed})"
            return Score(policy, workload, tuple(rows), why)
        if ours.figures is None or not ours.figures.goodput:
            raise ValueError(
                f"{BASELINE} serves no request within the SLO of {workload!r} under seed {seed} "
                f"with this cost model ({ours.disqualified}); there is nothing to compare with"
            )
        rows.append(SeedScore(seed, theirs.figures.goodput, ours.figures.goodput))
    return Score(policy, workload, tuple(rows))
