"""Cut at the placeholders: pieces of text, with pictures between them."""


def expand_placeholders(token_ids, image_token_id, lengths):
    places = [i for i, token in enumerate(token_ids) if token == image_token_id]
    if len(places) != len(lengths):
        raise ValueError(
            f"the prompt has {len(places)} image placeholder(s) {PLACEHOLDER}, and {len(lengths)} "
            "image(s) were passed; write one for each picture"
        )
    longer, ranges, done = [], [], 0
    for place, length in zip(places, lengths, strict=True):
        longer += token_ids[done:place]
        ranges += [PlaceholderRange(len(longer), length)]
        longer += length * [image_token_id]
        done = place + 1
    return longer + list(token_ids[done:]), ranges
