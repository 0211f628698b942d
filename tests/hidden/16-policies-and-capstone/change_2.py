"""Change request 2, over random fleets."""

from __future__ import annotations

import random

import pytest

from mini_vllm.policies.fleet import (
    EarliestFirstToken,
    Job,
    Prices,
    View,
    first_token_seconds,
)

PRICES = Prices(2.0, 1.0, 0.0, 10.0, 0.25, 1.0, 0.5)


@pytest.mark.parametrize("seed", range(30))
def test_change_2_any_fleet(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        job = Job(draw.randint(100, 200), 500.0, 5.0)

        def machines(count: int) -> list[View]:
            return [
                View(draw.choice([0, 32]), draw.randint(0, 30), draw.randint(0, 4),
                     draw.choice([50, 300]))
                for _ in range(count)
            ]  # fmt: skip

        prefill, decode = machines(draw.randint(0, 3)), machines(draw.randint(1, 4))
        found = EarliestFirstToken(PRICES).place(job, prefill, decode)
        roomy = [d for d, v in enumerate(decode) if v.free_tokens >= job.prompt_len]
        rated = []
        for d in roomy or range(len(decode)):
            for order, p in enumerate([None, *range(len(prefill))]):
                first = None if p is None else prefill[p]
                seconds = first_token_seconds(PRICES, job, first, decode[d])
                rated.append((decode[d].running, seconds, d, order, p))
        least = min(seconds for _, seconds, *_ in rated)
        _, _, d, _, p = min(
            (row for row in rated if row[1] <= 1.1 * least), key=lambda row: row[:4]
        )
        assert (found.prefill, found.decode) == (p, d)
