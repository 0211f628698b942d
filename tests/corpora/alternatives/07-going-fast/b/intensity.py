"""Each matrix by itself, with divmod."""


def tiles(size, tile):
    whole, rest = divmod(size, tile)
    return whole + (rest > 0)


def product_bytes(num_tokens, rows, columns, token_tile, row_tile, itemsize):
    x = num_tokens * columns * itemsize * tiles(rows, row_tile)
    weight = rows * columns * itemsize * tiles(num_tokens, token_tile)
    output = num_tokens * rows * itemsize
    return x + weight + output


def product_intensity(num_tokens, rows, columns, token_tile, row_tile, itemsize):
    moved = product_bytes(num_tokens, rows, columns, token_tile, row_tile, itemsize)
    return 2.0 * (num_tokens * rows * columns) / moved
