"""All tokens are text first; pictures are written over them and push the rest back."""


def get_mrope_input_positions(num_tokens, features, merge_size):
    positions = np.tile(np.arange(num_tokens, dtype=np.int64), (3, 1))
    delta = 0
    for feature in features:
        place, grid = feature.mm_position, feature.data["image_grid_thw"]
        height, width = grid[1] // merge_size, grid[2] // merge_size
        begin = place.offset + delta
        inside = slice(place.offset, place.end)
        positions[0, inside] = begin
        positions[1, inside] = begin + np.arange(height * width) // width
        positions[2, inside] = begin + np.arange(height * width) % width
        delta += max(height, width) - height * width
        positions[:, place.end :] = np.arange(place.end, num_tokens) + delta
    return positions, delta
