"""Sides first: tiles along each, then what each matrix costs."""


def product_bytes(num_tokens, rows, columns, token_tile, row_tile, itemsize):
    heights = [num_tokens // token_tile * token_tile, num_tokens]
    tiles = num_tokens // token_tile + (heights[0] < heights[1])
    others = rows // row_tile + (rows % row_tile > 0)
    x = others * num_tokens * columns
    weight = tiles * rows * columns
    return sum((x, weight, num_tokens * rows)) * itemsize


def product_intensity(*shape_and_tiles):
    num_tokens, rows, columns = shape_and_tiles[:3]
    multiply_adds = num_tokens * rows * columns
    return (multiply_adds + multiply_adds) / product_bytes(*shape_and_tiles)
