"""Shapes and tiles drawn at random; bytes are counted program by program."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=60)
HERE = "mini_vllm.kernels.intensity:"
side = st.integers(1, 90)


def by_programs(tokens: int, rows: int, columns: int, token_tile: int, row_tile: int) -> int:
    """Numbers that all programs read and write."""
    moved = 0
    for first in range(0, tokens, token_tile):
        own_tokens = min(token_tile, tokens - first)
        for begin in range(0, rows, row_tile):
            own_rows = min(row_tile, rows - begin)
            moved += (own_tokens + own_rows) * columns + own_tokens * own_rows
    return moved


@many
@given(shape=st.tuples(side, side, side), tiles=st.tuples(side, side), itemsize=st.integers(1, 8))
def test_07_8_any_product(
    subject: Any, shape: tuple[int, int, int], tiles: tuple[int, int], itemsize: int
) -> None:
    """Bytes exactly, and FLOPs for each of them."""
    p = Program()
    for function in ("product_bytes", "product_intensity"):
        p.see(p.call(f"{HERE}{function}", *shape, *tiles, itemsize))
    moved, intensity = subject.run(p)
    right = by_programs(*shape, *tiles) * itemsize
    assert type(moved) is int and moved == right
    tokens, rows, columns = shape
    exact = Fraction(2 * tokens * rows * columns, right)
    assert abs(Fraction(intensity) - exact) <= exact / 10**12


@many
@given(shape=st.tuples(*[st.integers(1, 10**6)] * 3), tile=st.sampled_from([16, 64, 128, 256]))
def test_07_8_large_products(subject: Any, shape: tuple[int, int, int], tile: int) -> None:
    """Whole numbers, however large."""
    p = Program()
    p.see(p.call(f"{HERE}product_bytes", *shape, tile, tile, 2))
    tokens, rows, columns = shape
    read = tokens * columns * -(-rows // tile) + rows * columns * -(-tokens // tile)
    assert subject.run(p) == [2 * (read + tokens * rows)]
