"""Side by side of the grid: what one row of programs reads, times the rows."""


def product_bytes(num_tokens, rows, columns, token_tile, row_tile, itemsize):
    total = num_tokens * rows
    for _ in range(0, rows, row_tile):
        total += num_tokens * columns
    for _ in range(0, num_tokens, token_tile):
        total += rows * columns
    return total * itemsize


def product_intensity(num_tokens, rows, columns, token_tile, row_tile, itemsize):
    from math import ceil

    grid = ceil(num_tokens / token_tile), ceil(rows / row_tile)
    numbers = columns * (num_tokens * grid[1] + rows * grid[0]) + num_tokens * rows
    return num_tokens * rows * columns * 2 / (numbers * itemsize)
