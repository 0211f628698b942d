"""Task 07.8: what a product in tiles moves, and its arithmetic for each byte of it."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.kernels.intensity import product_bytes, product_intensity


@pytest.mark.parametrize(
    ("shape", "tiles", "expected"),
    [
        ((16, 64, 128), (16, 64), 2 * (16 * 128 + 64 * 128 + 16 * 64)),
        ((16, 128, 512), (16, 64), 2 * (2 * 16 * 512 + 128 * 512 + 16 * 128)),
        ((64, 64, 512), (16, 64), 2 * (64 * 512 + 4 * 64 * 512 + 64 * 64)),
        ((64, 128, 32), (16, 64), 2 * (2 * 64 * 32 + 4 * 128 * 32 + 64 * 128)),
        ((17, 65, 10), (16, 64), 2 * (2 * 17 * 10 + 2 * 65 * 10 + 17 * 65)),
        ((1, 1, 5), (16, 64), 2 * (5 + 5 + 1)),
        ((3, 2, 7), (1, 1), 2 * (2 * 3 * 7 + 3 * 2 * 7 + 3 * 2)),
    ],
)
def test_07_8_bytes_of_a_product(
    shape: tuple[int, int, int], tiles: tuple[int, int], expected: int
) -> None:
    """x once for each tile of rows, the weight once for each tile of tokens, the results once."""
    at = f"[{shape[0]}, {shape[2]}] times [{shape[1]}, {shape[2]}], tiles of {tiles}, 2 bytes"
    expect(product_bytes(*shape, *tiles, 2), expected, at=at)


def test_07_8_bytes_of_a_number() -> None:
    """Four bytes a number: twice those of two."""
    expect(product_bytes(16, 128, 512, 16, 64, 4), 335_872, at="[16, 512] times [128, 512] float32")


@pytest.mark.parametrize(
    ("shape", "tiles", "expected"),
    [((1, 1, 1), (1, 1), 1 / 3), ((1, 4096, 4096), (16, 64), 4096 / 4161),
     ((64, 64, 64), (64, 64), 64 / 3)],
)  # fmt: skip
def test_07_8_flops_for_each_byte(
    shape: tuple[int, int, int], tiles: tuple[int, int], expected: float
) -> None:
    """A multiply-add is two FLOPs."""
    at = f"FLOPs a byte of [{shape[0]}, {shape[2]}] times [{shape[1]}, {shape[2]}], tiles {tiles}"
    yours = round(product_intensity(*shape, *tiles, 2), 5)
    expect(yours, round(expected, 5), at=at)


@pytest.mark.parametrize(
    ("tokens", "rows", "columns"), [(16, 128, 512), (40, 130, 96), (1, 64, 33)]
)
def test_07_8_program_by_program(tokens: int, rows: int, columns: int) -> None:
    """Bytes: the same, counted for each program of the engine's own launch."""
    from mini_vllm.kernels.products import product_tiles

    (along_tokens, along_rows), tiles = product_tiles(tokens, rows)
    moved = 0
    for i in range(along_tokens):
        own_tokens = min(tiles["TOKEN_TILE"], tokens - i * tiles["TOKEN_TILE"])
        for j in range(along_rows):
            own_rows = min(tiles["ROW_TILE"], rows - j * tiles["ROW_TILE"])
            moved += (own_tokens + own_rows) * columns + own_tokens * own_rows
    yours = product_bytes(tokens, rows, columns, tiles["TOKEN_TILE"], tiles["ROW_TILE"], 2)
    expect(yours, 2 * moved, at=f"[{tokens}, {columns}] times [{rows}, {columns}], {tiles}")
