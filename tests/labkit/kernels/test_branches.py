"""Which way a kernel goes by its constants, read and not run."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from labkit.kernels.watch.branches import ways

KERNEL = """
def kernel(x_ptr, stride, SIZE: tl.constexpr, TILE: tl.constexpr, FLAG: tl.constexpr):
    FULL: tl.constexpr = SIZE == TILE
    if FLAG and not FULL:
        a = 1
        if SIZE % 2 == 1:
            a = 2
    elif stride > 1:
        b = 1 if SIZE * 2 < TILE else 2
    for i in range(SIZE):
        if i == 3:
            c = 1
        if TILE // 0 == 1:
            c = 2
        if 10 ** SIZE > TILE:
            c = 3
"""


@pytest.mark.parametrize(
    ("constants", "taken"),
    [
        (dict(SIZE=8, TILE=8, FLAG=True), {(4, False), (9, False)}),
        (dict(SIZE=6, TILE=8, FLAG=True), {(4, True), (6, False)}),
        (dict(SIZE=7, TILE=8, FLAG=True), {(4, True), (6, True)}),
        (dict(SIZE=3, TILE=8, FLAG=False, stride=1), {(4, False), (8, False)}),
    ],
)
def test_conditions_that_constants_decide(
    constants: dict[str, Any], taken: set[tuple[int, bool]]
) -> None:
    """Others are left to a run; nothing is computed that could take for ever."""
    (function,) = ast.parse(KERNEL).body
    assert isinstance(function, ast.FunctionDef)
    assert ways(function, constants) == taken


def test_a_name_that_changes_is_no_constant() -> None:
    (function,) = ast.parse(
        "def kernel(A):\n    B = A\n    B = B + 1\n    if B == 1:\n        C = 1"
    ).body
    assert isinstance(function, ast.FunctionDef)
    assert ways(function, {"A": 0}) == set()
