"""Place by place."""


def mask_rows(req_ids, num_rows, masks):
    logits_rows, rows = [], []
    first_logit = 0
    for req_id, count in zip(req_ids, num_rows, strict=True):
        if req_id in masks:
            first_mask, num_masks = masks[req_id]
            for place in range(min(count, num_masks)):
                logits_rows.append(first_logit + place)
                rows.append(first_mask + place)
        first_logit += count
    return logits_rows, rows
