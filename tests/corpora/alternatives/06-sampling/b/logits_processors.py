"""Masks over the whole table; a token is kept by what is larger than it, not by a threshold."""


def larger_tokens(logits):
    """[B, V]: how many tokens of the row have a larger logit; and the row in falling order."""
    falling = logits.sort(dim=-1, descending=True).values.contiguous()
    return torch.searchsorted(-falling, -logits.contiguous()), falling


def apply_allowed_token_ids(logits, allowed):
    masked = torch.full_like(logits, NEG_INF)
    masked[allowed] = logits[allowed]
    return masked


def apply_min_tokens(logits, rows, token_ids, until, num_output_tokens):
    banned = torch.zeros_like(logits, dtype=torch.int64)
    short = (num_output_tokens[rows] < until).long()
    banned.index_put_((rows, token_ids), short, accumulate=True)
    return torch.where(banned > 0, NEG_INF, logits)


def apply_logit_bias(logits, rows, token_ids, values):
    bias = torch.zeros_like(logits)
    bias[rows, token_ids] = values
    return logits + bias


def apply_penalties(logits, rows, token_ids, output_counts, repetition, presence, frequency):
    places = (rows, token_ids)
    counts = output_counts[places]
    old, factor = logits[places], repetition[rows]
    old = old * torch.where(old > 0, 1 / factor, factor)
    old -= frequency[rows] * counts
    old -= presence[rows] * counts.clamp(max=1).float()
    penalised = logits.clone()
    penalised[places] = old
    return penalised


def apply_temperature(logits, temperature):
    greedy = (temperature == 0)[:, None]
    return torch.where(greedy, logits, logits / temperature.clamp(min=1e-30)[:, None])


def apply_min_p(logits, min_p):
    below = logits - logits.max(dim=-1, keepdim=True).values
    return logits.masked_fill(below < torch.log(min_p)[:, None], NEG_INF)


def apply_top_k(logits, top_k):
    num_larger, _ = larger_tokens(logits)
    kept = (num_larger < top_k[:, None]) | (top_k[:, None] == 0)
    return logits.masked_fill(~kept, NEG_INF)


def apply_top_p(logits, top_p):
    wanted = top_p.double()[:, None]
    total = logits.double().logsumexp(dim=-1, keepdim=True)
    for size in (min(128, logits.shape[1]), logits.shape[1]):
        falling = logits.topk(size, dim=-1).values
        shares = (falling.double() - total).exp()
        running = shares.cumsum(dim=-1)
        if ((running[:, -1:] >= wanted) | (wanted >= 1)).all():
            break
    needed = running - shares < wanted
    threshold = falling.masked_fill(~needed, float("inf")).amin(dim=-1, keepdim=True)
    return logits.masked_fill((logits < threshold) & (wanted < 1), NEG_INF)


def apply_top_k_top_p(logits, top_k, top_p):
    after_k = logits if top_k is None else apply_top_k(logits, top_k)
    return after_k if top_p is None else apply_top_p(after_k, top_p)
