"""A row of the masks for each row of the logits, or None."""


def mask_rows(req_ids, num_rows, masks):
    mask_of = []
    for req_id, count in zip(req_ids, num_rows, strict=True):
        first, known = masks.get(req_id, (0, 0))
        mask_of += [first + k if k < known else None for k in range(count)]
    kept = [(row, mask) for row, mask in enumerate(mask_of) if mask is not None]
    return [row for row, _ in kept], [mask for _, mask in kept]
