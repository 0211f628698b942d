"""What the oracle's docstrings say of types and rounding, and random numbers hide; and what a
gather may touch."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.process.worker import Program

HERE = "mini_vllm.attention.reference:"


def tensor(p: Program, values: Any, dtype: str = "float32") -> Any:
    return p.call("torch:tensor", values, dtype=p.name(f"torch:{dtype}"))


def attend(
    p: Program,
    query: list[float],
    keys: list[list[float]],
    values: list[float],
    scale: float = 1.0,
    visible: list[bool] | None = None,
) -> Any:
    """One bfloat16 token with one head over float32 keys and values; each value is one number, in
    the first of the head's features."""
    padded = [[[value] + [0.0] * (len(query) - 1)] for value in values]
    return p.call(
        f"{HERE}attend",
        tensor(p, [[query]], "bfloat16"),
        tensor(p, [[key] for key in keys]),
        tensor(p, padded),
        tensor(p, [visible or [True] * len(keys)], "bool"),
        scale,
    )


def number(subject: Any, p: Program, result: Any) -> float:
    p.see(result[0, 0, 0].item())
    return float(subject.run(p)[0])


def test_04_3_weights_stay_in_float32(subject: Any) -> None:
    """Three equal weights of 1/3 times 1.003 are 1.003, which is 1.0 in bfloat16. In bfloat16 1/3
    is 0.334, and three of them are more than 1: the result would be 1.0078."""
    p = Program()
    assert number(subject, p, attend(p, [0.0], [[0.0]] * 3, [1.003] * 3)) == 1.0


def test_04_3_values_stay_in_float32(subject: Any) -> None:
    """The mean of 1.003 and 1.011 is 1.007, which is 1.0078125 in bfloat16; that of 1.0 and
    1.0078125, to which the two are rounded, would be 1.0."""
    p = Program()
    assert number(subject, p, attend(p, [0.0], [[0.0]] * 2, [1.003, 1.011])) == 1.0078125


def test_04_3_scores_stay_in_float32(subject: Any) -> None:
    """Scores of 100 and 100.3 are 100 and 100.5 in bfloat16."""
    p = Program()
    result = attend(p, [1.0], [[100.0], [100.3]], [0.0, 1.0])
    assert abs(number(subject, p, result) - 0.5744) < 0.005


def test_04_3_the_scale_meets_the_scores_in_float32(subject: Any) -> None:
    """0.1 * (1, 3) over (300, 0) and (0, 100) gives 30 twice; rounded before, 30.03 and 30.08."""
    p = Program()
    result = attend(p, [1.0, 3.0], [[300.0, 0.0], [0.0, 100.0]], [1.0, -1.0], 0.1)
    assert abs(number(subject, p, result)) < 0.005


def test_04_3_no_number_stands_for_minus_infinity(subject: Any) -> None:
    """The only visible key has a score of -100,000, and counts alone all the same."""
    p = Program()
    result = attend(p, [1.0], [[-1e5], [0.0]], [1.0, 5.0], visible=[True, False])
    assert number(subject, p, result) == 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_04_3_the_answer_has_the_querys_type(subject: Any, dtype: str) -> None:
    """Whatever the cache holds."""
    p = Program()
    zeros = tensor(p, [[[0.0]]])
    result = p.call(
        f"{HERE}attend", tensor(p, [[[0.0]]], dtype), zeros, zeros, tensor(p, [[True]], "bool"), 1.0
    )
    p.see(p.call("builtins:str", result.dtype))
    assert subject.run(p) == [f"torch.{dtype}"]


def test_04_3_only_the_requests_pages_are_read(subject: Any) -> None:
    """Seven pages of 4,096: what is touched is nowhere near the cache."""
    p = Program()
    cache = p.call("torch:zeros", 2, 4096, 16, 1, 2)
    table = tensor(p, [*range(7), 10**6], "int32")
    gather = p.name(f"{HERE}gather_kv")
    p.see(p.call("labkit.inside.cost:elements", gather, cache, table, 100))
    assert subject.run(p)[0] < 4096 * 16
