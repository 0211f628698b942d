"""What public tests and notebooks take for the same value."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import same


@pytest.mark.parametrize(
    ("yours", "expected", "right"),
    [
        (0, 0.0, True),  # `return 0` in a function that is annotated float
        (2.0, 2, False),  # a count is a whole number
        (True, 1, False),
        (1, True, False),
        (True, 1.0, False),
        ("3", 3, False),
        (None, 0.0, False),
        ([1], [1], True),
        ((1,), [1], False),
    ],
)
def test_a_type_may_stand_for_another(yours: Any, expected: Any, right: bool) -> None:
    assert same(yours, expected) is right
