"""What a product in tiles moves, and how much arithmetic it does for each byte of it.

Of `[T, K]` times `[N, K]`, a program makes a tile of results. For that it reads its rows of x and
of the weight from the first column to the last. So x is read once for each tile of N, and the
weight once for each tile of T:

    bytes = (T * K * tiles of N  +  N * K * tiles of T  +  T * N) * itemsize
"""

from __future__ import annotations


def product_bytes(
    num_tokens: int, rows: int, columns: int, token_tile: int, row_tile: int, itemsize: int
) -> int:
    """Bytes that go between memory and the programs of a product ``[T, K]`` times ``[N, K]``.

    A program reads its rows of ``x`` and of the weight once, and only those that exist: the last
    tile of a side may be smaller. It writes its results once. What caches keep is not counted.
    Sides may be a million long, so tiles are counted and not gone through one by one.

    Args:
        num_tokens, rows, columns: T, N and K.
        token_tile, row_tile: how many tokens, and rows of the weight, a tile of results has.
        itemsize: bytes of a number, in x, weight and results alike.
    """
    # TODO 07.8
    raise NotImplementedError(
        "TODO 07.8: write product_bytes in labs/07-going-fast/intensity.py"
        " (phase 07, 02-mini-build.md#task-8)"
    )


def product_intensity(
    num_tokens: int, rows: int, columns: int, token_tile: int, row_tile: int, itemsize: int
) -> float:
    """FLOPs for each of these bytes; a multiply-add is two.

    A device that does P FLOPs and moves B bytes a second waits for memory below P / B.
    """
    # TODO 07.8
    raise NotImplementedError(
        "TODO 07.8: write product_intensity in labs/07-going-fast/intensity.py"
        " (phase 07, 02-mini-build.md#task-8)"
    )
