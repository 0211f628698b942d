"""Change request 1, on random lives: the gaps are as many as the tokens, and add up to the time."""

from __future__ import annotations

import math
from random import Random

import pytest

from labkit.inside import serving


@pytest.mark.parametrize("seed", range(20))
def test_change_1_any_life(seed: int) -> None:
    rng = Random(seed)
    stamp, outputs = 5.0, []
    for _ in range(rng.randint(1, 8)):
        stamp += rng.choice([0.25, 0.5, 1.0])
        more = {"preempted": rng.randint(0, 2), "now": 100.0 + stamp}
        outputs.append({"tokens": rng.choice([0, 1, 1, 2, 4]), "stamp": stamp, **more})
    outputs[0]["times"] = [1.0, 2.0]
    steps = serving.life(outputs, None, 0.0)["steps"]
    with_tokens = [output for output in outputs if output["tokens"]]
    found = [gap for step in steps for gap in step["itls"]]
    assert len(found) == sum(output["tokens"] for output in with_tokens[1:])
    if with_tokens:
        whole = with_tokens[-1]["stamp"] - with_tokens[0]["stamp"]
        assert math.isclose(sum(found), whole, abs_tol=1e-4)
    last = None
    for output, step in zip(outputs, steps, strict=True):
        if output["tokens"] and last is not None:
            gap = (output["stamp"] - last) / output["tokens"]
            assert [round(one, 5) for one in step["itls"]] == [round(gap, 5)] * output["tokens"]
        else:
            assert step["itls"] == []
        last = output["stamp"] if output["tokens"] else last
    assert sum(len(step["ttfts"]) for step in steps) == bool(with_tokens)
