"""A triple for each token, turned at the end."""


def get_mrope_input_positions(num_tokens, features, merge_size):
    triples = []
    here = 0  # the position of the next word
    for feature in features:
        while len(triples) < feature.mm_position.offset:
            triples.append((here, here, here))
            here += 1
        _, height, width = (int(n) for n in feature.data["image_grid_thw"])
        rows, columns = height // merge_size, width // merge_size
        triples += [(here, here + r, here + c) for r in range(rows) for c in range(columns)]
        here += max(rows, columns)
    text = num_tokens - len(triples)
    triples += [(here + i,) * 3 for i in range(text)]
    positions = np.array(triples, dtype=np.int64).reshape(num_tokens, 3).T
    return positions, here + text - num_tokens
