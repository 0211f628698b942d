"""Change request 2, against a simulation's exact sum."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from mini_vllm.spec_decode.metrics import expected_tokens_per_step, speedup


@pytest.mark.parametrize("seed", range(30))
def test_change_2_the_mean_over_all_outcomes(seed: int) -> None:
    rng = Random(seed)
    rates = [rng.choice((0.0, 0.3, 0.9, 1.0)) for _ in range(rng.randint(0, 5))]
    mean = 0.0
    for outcome in product((True, False), repeat=len(rates)):
        chance = 1.0
        for good, rate in zip(outcome, rates, strict=True):
            chance *= rate if good else 1 - rate
        accepted = outcome.index(False) if False in outcome else len(outcome)
        mean += chance * (accepted + 1)
    assert expected_tokens_per_step(rates, len(rates)) == pytest.approx(mean)
    assert speedup(rates, len(rates), 0.1, 1.0) == pytest.approx(mean / (0.1 * len(rates) + 1))


def test_change_2_one_number_as_before() -> None:
    for rate in (0, 0.25, 1, 1.0):
        assert expected_tokens_per_step(rate, 4) == pytest.approx(sum(rate**j for j in range(5)))
