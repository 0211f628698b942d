"""One row after the other, in plain loops."""


def apply_allowed_token_ids(logits, allowed):
    return logits.masked_fill(~allowed, NEG_INF)


def apply_min_tokens(logits, rows, token_ids, until, num_output_tokens):
    changed = logits.clone()
    entries = zip(rows.tolist(), token_ids.tolist(), until.tolist(), strict=True)
    for row, token_id, end in entries:
        if int(num_output_tokens[row]) < end:
            changed[row, token_id] = NEG_INF
    return changed


def apply_logit_bias(logits, rows, token_ids, values):
    changed = logits.clone()
    for row, token_id, value in zip(rows.tolist(), token_ids.tolist(), values, strict=True):
        changed[row, token_id] += value
    return changed


def apply_penalties(logits, rows, token_ids, output_counts, repetition, presence, frequency):
    changed = logits.clone()
    for row, token_id in set(zip(rows.tolist(), token_ids.tolist(), strict=True)):
        logit, count = logits[row, token_id], output_counts[row, token_id]
        if logit > 0:
            logit = logit / repetition[row]
        else:
            logit = logit * repetition[row]
        logit = logit - frequency[row] * count
        if count > 0:
            logit = logit - presence[row]
        changed[row, token_id] = logit
    return changed


def apply_temperature(logits, temperature):
    changed = logits.clone()
    for row, value in zip(changed, temperature.tolist(), strict=True):
        if value > 0:
            row /= value
    return changed


def apply_min_p(logits, min_p):
    changed = logits.clone()
    for row, value in zip(changed, min_p, strict=True):
        if value > 0:
            probabilities = row.double().softmax(dim=-1)
            row[probabilities < value * probabilities.max()] = NEG_INF
    return changed


def apply_top_k(logits, top_k):
    changed = logits.clone()
    for row, k in zip(changed, top_k.tolist(), strict=True):
        if 0 < k < len(row):
            row[row < row.sort(descending=True).values[k - 1]] = NEG_INF
    return changed


def apply_top_p(logits, top_p):
    changed = logits.clone()
    for row, wanted in zip(changed, top_p.tolist(), strict=True):
        if wanted >= 1:
            continue
        probabilities = row.double().softmax(dim=-1)
        order = row.topk(min(128, len(row))).indices
        if probabilities[order].sum() < wanted:
            order = row.argsort(descending=True)
        total = 0.0
        for token_id, share in zip(order.tolist(), probabilities[order].tolist(), strict=True):
            last, total = token_id, total + share
            if total >= wanted:
                break
        row[row < row[last].item()] = NEG_INF
    return changed


def apply_top_k_top_p(logits, top_k, top_p):
    steps = [(apply_top_k, top_k), (apply_top_p, top_p)]
    for step, values in steps:
        logits = logits if values is None else step(logits, values)
    return logits
