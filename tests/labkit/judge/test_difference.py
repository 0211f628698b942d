"""Where two long values differ first."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from labkit.judge.difference import about, first_difference

WORDS = ["".join(word) for size in range(5) for word in product("ab", repeat=size)]
LONG = list(range(300))


@pytest.mark.parametrize(
    ("yours", "expected", "said"),
    [
        ([1, 2], [1, 3], ""),  # seen at once
        ([*LONG[:7], 9, *LONG[8:]], LONG, "item [7] is 9, expected 7"),
        (LONG[:-1], LONG, "first difference: 299 is missing"),
        ([0] * 50, [0] * 51, "it has 50 items, expected 51"),
        (WORDS[3:], WORDS[2:], "first difference: 'b' is missing"),
        (["", *WORDS[2:]], [*WORDS[2:-1]], "first difference: '' is too many"),
        ([[0] * 40, [0] * 40], [[0] * 40, [0] * 39 + [1]], "item [1][39] is 0, expected 1"),
        ({"a": LONG, "b": 1}, {"a": LONG, "b": 2}, "item ['b'] is 1, expected 2"),
        ({"a": LONG}, {"a": LONG, "b": 2}, "['b'] is missing"),
        ("x" * 70 + "a", "x" * 70 + "b", f"at character 70: {'x' * 20 + 'a'!r}, expected"),
        (np.zeros((9, 9)), np.eye(9), "item [0][0] is 0.0, expected 1.0"),
        ([float("nan")] * 30, [float("nan")] * 29 + [1.0], "item [29] is nan, expected 1.0"),
    ],
)  # fmt: skip
def test_the_first_difference(yours: object, expected: object, said: str) -> None:
    found = first_difference(yours, expected)
    assert found.startswith(said) and bool(found) == bool(said), found


def test_a_long_value_is_told_by_its_size_and_beginning() -> None:
    assert about([1, 2, 3]) == "[1, 2, 3]"
    assert about(LONG).startswith("300 items: [0, 1, 2,") and len(about(LONG)) < 150
    assert about(np.zeros((16, 256))).startswith("ndarray [16, 256]: [[0.0, 0.0")
    assert len(about(np.zeros((16, 256)))) < 100
