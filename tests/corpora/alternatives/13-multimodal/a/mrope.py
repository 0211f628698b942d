"""Token by token, with plain lists."""


def get_mrope_input_positions(num_tokens, features, merge_size):
    time, height, width = [], [], []
    following = 0

    def text(count):
        nonlocal following
        for row in (time, height, width):
            row.extend(range(following, following + count))
        following += count

    for feature in features:
        text(feature.mm_position.offset - len(time))
        _, rows, columns = (size // merge_size for size in feature.data["image_grid_thw"])
        for row in range(rows):
            for column in range(columns):
                time.append(following)
                height.append(following + row)
                width.append(following + column)
        following += max(rows, columns)
    text(num_tokens - len(time))
    return np.array([time, height, width], dtype=np.int64), following - num_tokens
