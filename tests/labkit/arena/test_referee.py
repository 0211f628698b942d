"""The referee: honest schedulers pass every check, and each broken rule is seen and named."""

from __future__ import annotations

import pytest

from labkit.arena.contest import ENTRANTS
from labkit.arena.referee import Referee, RuleBroken
from labkit.arena.workloads import Arrival, Workload
from mini_vllm.core.scheduler import Scheduler
from tests.labkit.arena import cheaters
from tests.labkit.arena.worlds import arrival, play, world

CROWD = [arrival(0.0, 5 + 3 * i, 8 + i % 5, start=1000 * (i + 1)) for i in range(12)]
SHARED = [arrival(0.3 * i, 24, 9, start=500) for i in range(8)]


@pytest.mark.parametrize("policy", ENTRANTS)
@pytest.mark.parametrize("arrivals", [CROWD, SHARED], ids=["crowd", "shared"])
@pytest.mark.parametrize("blocks", [14, 24, 64])
def test_every_policy_of_ours_keeps_all_rules(
    policy: str, arrivals: list[Arrival], blocks: int
) -> None:
    run = play(arrivals, world(blocks, host_blocks=32), ENTRANTS[policy])
    assert len(run.served) == len(arrivals)


def test_the_crowd_is_crowded() -> None:
    """Otherwise the test before this one shows little."""
    assert play(CROWD, world(14)).preemptions > 0
    assert play(CROWD, world(14, host_blocks=32), ENTRANTS["vllm-v0-swap"]).swapped_blocks > 0
    assert play(SHARED, world(24)).cached_tokens > 0


@pytest.mark.parametrize(
    ("cheater", "limits", "rule"),
    [
        (cheaters.OverBudget, world(), r"a step of \d+ tokens; max_num_batched_tokens is 64"),
        (cheaters.OverRows, world(seqs=4), r"a step with \d+ requests; max_num_seqs is 4"),
        (cheaters.PretendsCached, world(), "another text stands there"),
        (cheaters.SharesBlocks, world(), "another text|blocks are held|in 2 blocks"),
        (cheaters.LosesBlocks, world(), "blocks are held and"),
        (cheaters.EndsEarly, world(), r"r0 ended \(length\) with 1 of 8 tokens"),
        (cheaters.Aborts, world(), "brought no token|unknown"),
        (cheaters.Idles, world(), "5000 steps in a row brought no token; 12 requests wait"),
        (cheaters.ForgetsToSwapIn, world(14, host_blocks=32), "another text stands there"),
    ],
)
def test_a_broken_rule_is_named(cheater: type[Scheduler], limits: Workload, rule: str) -> None:
    with pytest.raises(RuleBroken, match=rule):
        play(CROWD, limits, cheater)


def test_a_digest_covers_all_that_came_before() -> None:
    """Equal blocks after different beginnings are different texts."""
    referee = Referee(world().scheduler, world().cache)
    referee.add("a", [1, 2, 3, 4, 9, 9])
    referee.add("b", [1, 2, 3, 5, 9, 9])
    digests = [referee.requests[i].digests_up_to(6) for i in ("a", "b")]
    assert digests[0][:3] == digests[1][:3]
    assert not set(digests[0][3:]) & set(digests[1][3:])
