"""From the end to the beginning, so that no place moves; the ranges afterwards."""


def expand_placeholders(token_ids, image_token_id, lengths):
    places = [i for i, token in enumerate(token_ids) if token == image_token_id]
    if len(places) != len(lengths):
        raise ValueError(
            f"{len(places)} placeholder(s) {PLACEHOLDER} and {len(lengths)} image(s); write one "
            "for each image"
        )
    expanded = list(token_ids)
    for place, length in zip(reversed(places), reversed(list(lengths)), strict=True):
        expanded[place : place + 1] = [image_token_id] * length
    ranges, moved = [], 0
    for place, length in zip(places, lengths, strict=True):
        ranges.append(PlaceholderRange(place + moved, length))
        moved += length - 1
    return expanded, ranges
