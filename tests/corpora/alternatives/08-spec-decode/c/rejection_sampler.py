"""A rectangle filled, then cut by places."""


def keep_until_rejected(accepted, tokens, num_draft_tokens, bonus_token_ids):
    counts = torch.tensor(list(num_draft_tokens), device=tokens.device).unsqueeze(1)
    width = tokens.shape[1]
    places = torch.arange(width + 1, device=tokens.device).unsqueeze(0)
    right = accepted & (places[:, :width] < counts)
    num_right = right.long().cumprod(dim=1).sum(dim=1, keepdim=True)
    result = torch.full((len(tokens), width + 1), PLACEHOLDER_TOKEN_ID, device=tokens.device)
    result[:, :width] = tokens
    result = torch.where(places == counts, bonus_token_ids.unsqueeze(1), result)
    return torch.where(places <= num_right, result, PLACEHOLDER_TOKEN_ID)


def rejection_greedy_sample(draft_token_ids, num_draft_tokens, target_argmax, bonus_token_ids):
    says = pad_rows(target_argmax, num_draft_tokens, fill=PLACEHOLDER_TOKEN_ID)
    drafts = pad_rows(draft_token_ids, num_draft_tokens, fill=PLACEHOLDER_TOKEN_ID)
    return keep_until_rejected(says == drafts, says, num_draft_tokens, bonus_token_ids)


def recovered_probs(draft_token_ids, draft_probs, target_probs):
    if draft_probs is None:
        draft_probs = torch.zeros_like(target_probs)
        draft_probs[torch.arange(len(draft_token_ids)), draft_token_ids] = 1.0
    rest = torch.clamp(target_probs - draft_probs, min=0)
    total = rest.sum(dim=1, keepdim=True)
    return torch.where(total > 0, rest / total, torch.zeros_like(rest))


def rejection_random_sample(
    draft_token_ids,
    num_draft_tokens,
    draft_probs,
    target_probs,
    bonus_token_ids,
    recovered_token_ids,
    uniform_probs,
):
    places = draft_token_ids.unsqueeze(1)
    p = target_probs.gather(1, places).squeeze(1)
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(1, places).squeeze(1)
    accepted = (uniform_probs * q < p) & (q > 0)
    tokens = torch.where(accepted, draft_token_ids, recovered_token_ids)
    return keep_until_rejected(
        pad_rows(accepted, num_draft_tokens, fill=False),
        pad_rows(tokens, num_draft_tokens, fill=PLACEHOLDER_TOKEN_ID),
        num_draft_tokens,
        bonus_token_ids,
    )
