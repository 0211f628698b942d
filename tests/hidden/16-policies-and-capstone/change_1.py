"""Change request 1, over random prices."""

from __future__ import annotations

import math
import random

import pytest

from mini_vllm.policies.fleet import Prices, tokens_to_load


@pytest.mark.parametrize("seed", range(30))
def test_change_1_any_prices(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(40):
        trip, carried, token = draw.randint(0, 40), draw.randint(1, 4) / 4, draw.randint(1, 6) / 4
        pair = draw.choice([0.0, 2.0**-9])
        prices = Prices(3.0, token, pair, trip, carried, 1.0, 1.0)
        cached, stored, length = draw.randint(0, 400), draw.randint(0, 900), draw.randint(900, 1800)
        more = stored - cached
        right = 0
        if more > 0 and math.ceil(more / 256) * trip + more * carried < more * (
            token + length * pair
        ):
            right = more
        assert tokens_to_load(prices, length, cached, stored) == right


def test_change_1_between_machines_as_before() -> None:
    assert Prices(3.0, 1.0, 0.0, 10.0, 1.0, 1.0, 1.0).carry(600) == 610.0
    prices = Prices(3.0, 2.0, 0.0, 10.0, 1.0, 1.0, 1.0)
    assert tokens_to_load(prices, 1000, 0, 1000) == 1000
    assert tokens_to_load(Prices(3.0, 1.03, 0.0, 10.0, 1.0, 1.0, 1.0), 1000, 0, 1000) == 0
