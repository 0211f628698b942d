"""Where each request's rows begin, then the rows of those that have masks."""


def mask_rows(req_ids, num_rows, masks):
    begin = dict(zip(req_ids, np.cumsum([0, *num_rows]).tolist(), strict=False))
    pairs = []
    for req_id, count in zip(req_ids, num_rows, strict=True):
        if masks.get(req_id) is None:
            continue
        first, num_masks = masks[req_id]
        for k in range(min(count, num_masks)):
            pairs.append((begin[req_id] + k, first + k))
    return [row for row, _ in pairs], [mask for _, mask in pairs]
