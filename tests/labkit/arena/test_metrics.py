"""What a run was worth: latencies, promises, goodput, fairness."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from labkit.arena.metrics import Percentiles, figures, jain, meets_slo
from labkit.arena.simulator import Run, Served
from labkit.arena.workloads import Slo
from tests.labkit.arena.worlds import ROUND, world

# Number, priority, prompt, output, arrived, first token, finished.
QUICK = Served(0, 0, 10, 3, 0.0, 2.0, 5.0)  # alone this takes 2 + 2 * 1.5 = 5 s
LATE = Served(1, 0, 10, 3, 0.0, 6.0, 9.0)  # its first token after 6 s
SLOW = Served(2, 1, 10, 3, 0.0, 2.0, 10.0)  # 4 s per token


def a_run() -> Run:
    return Run([QUICK, LATE, SLOW], 10.0, 8, 36, 4, 6, 2, 12, kv_seconds=2.5, kv_peak=0.5)


def test_a_request_counts_only_if_it_got_both_promises() -> None:
    workload = replace(world(), slos={0: Slo(5.0, 2.0), 1: Slo(5.0, 2.0)})
    assert [meets_slo(s, workload) for s in (QUICK, LATE, SLOW)] == [True, False, False]
    patient = replace(world(), slos={0: Slo(5.0, 2.0), 1: Slo(5.0, 4.0)})
    assert meets_slo(SLOW, patient)


def test_the_figures_of_a_run() -> None:
    workload = replace(world(), slos={0: Slo(5.0, 2.0), 1: Slo(5.0, 4.0)})
    found = figures(a_run(), workload, ROUND)
    assert found.goodput == pytest.approx(0.2)
    assert found.within_slo == pytest.approx(2 / 3)
    assert found.within_slo_by_priority == {0: 0.5, 1: 1.0}
    assert found.tokens_per_second == pytest.approx(0.9)
    assert found.ttft.p50 == 2.0 and found.e2e.p50 == 9.0
    assert found.kv_mean == 0.25
    assert found.cached_share == pytest.approx(0.2)
    assert found.fairness == pytest.approx(jain([1.0, 1.8, 2.0]))
    assert json.loads(json.dumps(found.to_dict()))["within_slo_by_priority"] == {"0": 0.5, "1": 1.0}


def test_percentiles_lie_between_neighbours() -> None:
    assert Percentiles.of(range(101)) == Percentiles(50.0, 90.0, 99.0)


def test_jain_is_one_for_equals_and_one_nth_for_one_of_n() -> None:
    assert jain([3.0] * 7) == pytest.approx(1.0)
    assert jain([5.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([1.0, 3.0]) == pytest.approx(0.8)
