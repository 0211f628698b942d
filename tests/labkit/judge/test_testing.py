"""What public tests take for equal is what hidden suites take for it."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from labkit.inside import plain
from labkit.testing import Divergence, expect, same

NUMBERS: list[tuple[Any, Any, str]] = [
    (np.int64(3), 3, "it is a numpy.int64, not an int; `int(...)` makes it one"),
    (np.float64(3), 3.0, "it is a numpy.float64, not a float"),
    ([1, np.int64(3)], [1, 3], "its item 1 is a numpy.int64, not an int"),
    ((np.float64(0.5),), (0.5,), "its item 0 is a numpy.float64, not a float"),
    ({"r0": [np.int32(3)]}, {"r0": [3]}, "its value of 'r0', its item 0 is a numpy.int32"),
    ({np.int64(3): 1}, {3: 1}, "its key "),
    ([np.bool_(True)], [True], "its item 0 is a numpy.bool, not a bool"),
]


@pytest.mark.parametrize(("yours", "expected", "said"), NUMBERS, ids=str)
def test_a_number_of_numpy_is_no_number_of_python_in_both_suites(
    yours: Any, expected: Any, said: str
) -> None:
    assert yours == expected
    with pytest.raises(Divergence, match="numpy") as caught:
        expect(yours, expected, at="here")
    assert caught.value.note.startswith(said.partition(" not")[0])
    with contextlib.suppress(plain.PlainError):  # a key that is no plain one is no answer at all
        assert plain.decode(plain.encode(yours)) != expected


@pytest.mark.parametrize(
    ("yours", "expected"),
    [([1, 2], [1, 2]), ({"a": (1.5,)}, {"a": (1.5,)}), (np.int64(3), np.int64(3)), ("x", "x")],
    ids=str,
)
def test_what_is_plain_on_both_sides_is_the_same(yours: Any, expected: Any) -> None:
    assert same(yours, expected)
    expect(yours, expected, at="here")
