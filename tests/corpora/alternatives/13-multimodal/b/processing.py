"""The text between the placeholders, and a picture behind each piece but the last."""


def expand_placeholders(token_ids, image_token_id, lengths):
    pieces = [[]]
    for token in token_ids:
        if token == image_token_id:
            pieces.append([])
        else:
            pieces[-1].append(token)
    if len(pieces) - 1 != len(lengths):
        raise ValueError(
            f"the prompt has {len(pieces) - 1} placeholders {PLACEHOLDER} for {len(lengths)} "
            "images; it needs one for each"
        )
    expanded, ranges = list(pieces[0]), []
    for length, piece in zip(lengths, pieces[1:], strict=True):
        ranges.append(PlaceholderRange(offset=len(expanded), length=length))
        expanded.extend([image_token_id] * length)
        expanded.extend(piece)
    return expanded, ranges
