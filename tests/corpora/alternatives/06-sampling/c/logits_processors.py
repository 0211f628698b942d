"""Flat indices and rising order: what must go is cut off from below."""


def cut_below(logits, threshold):
    return torch.where(logits >= threshold, logits, torch.full_like(logits, NEG_INF))


def apply_allowed_token_ids(logits, allowed):
    rows, token_ids = (~allowed).nonzero(as_tuple=True)
    return logits.index_put((rows, token_ids), logits.new_tensor(NEG_INF))


def apply_min_tokens(logits, rows, token_ids, until, num_output_tokens):
    short = num_output_tokens.index_select(0, rows).lt(until).nonzero().squeeze(1)
    flat = rows * logits.shape[1] + token_ids
    return logits.flatten().index_fill(0, flat[short], NEG_INF).view_as(logits)


def apply_logit_bias(logits, rows, token_ids, values):
    flat = rows * logits.shape[1] + token_ids
    return logits.flatten().scatter_add(0, flat, values).view_as(logits)


def apply_penalties(logits, rows, token_ids, output_counts, repetition, presence, frequency):
    flat = torch.unique(rows * logits.shape[1] + token_ids)
    owner = flat // logits.shape[1]
    count = output_counts.flatten()[flat]
    factor = repetition[owner]
    logit = logits.flatten()[flat]
    logit = logit * torch.where(logit > 0, 1 / factor, factor)
    logit = logit - frequency[owner] * count
    logit = logit - presence[owner] * count.clamp(max=1)
    return logits.flatten().scatter(0, flat, logit).view_as(logits)


def apply_temperature(logits, temperature):
    divisor = temperature.masked_fill(temperature == 0, 1.0)
    return (logits.t() / divisor).t().contiguous()


def apply_min_p(logits, min_p):
    probabilities = torch.softmax(logits, dim=-1)
    enough = probabilities >= min_p[:, None] * probabilities.amax(dim=-1, keepdim=True)
    return torch.where(enough, logits, NEG_INF)


def apply_top_k(logits, top_k):
    size = logits.shape[1]
    thresholds = [
        row.kthvalue(size - k + 1).values if 0 < k < size else row.new_tensor(NEG_INF)
        for row, k in zip(logits, top_k.tolist(), strict=True)
    ]
    return cut_below(logits, torch.stack(thresholds)[:, None])


def apply_top_p(logits, top_p):
    wanted = top_p.double()[:, None]
    total = logits.double().logsumexp(dim=-1, keepdim=True)
    rising = logits.topk(min(128, logits.shape[1]), dim=-1).values.flip(-1)
    shares = (rising.double() - total).exp()
    if ((shares.sum(dim=-1, keepdim=True) < wanted) & (wanted < 1)).any():
        rising = logits.sort(dim=-1).values
        shares = (rising.double() - total).exp()
    unseen = 1 - shares.sum(dim=-1, keepdim=True)
    dropped = (unseen + shares.cumsum(dim=-1) <= 1 - wanted).sum(dim=-1, keepdim=True)
    dropped = dropped.clamp(max=rising.shape[1] - 1)
    threshold = rising.gather(1, dropped).masked_fill((top_p == 1)[:, None], NEG_INF)
    return cut_below(logits, threshold)


def apply_top_k_top_p(logits, top_k, top_p):
    if top_k is None and top_p is None:
        return logits
    if top_p is None:
        return apply_top_k(logits, top_k)
    if top_k is None:
        return apply_top_p(logits, top_p)
    return apply_top_p(apply_top_k(logits, top_k), top_p)
