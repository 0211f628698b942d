"""The first rejection by argmax; columns put together with cat."""


def keep_until_rejected(accepted, tokens, num_draft_tokens, bonus_token_ids):
    counts = torch.tensor(num_draft_tokens, device=tokens.device)
    places = torch.arange(tokens.shape[1] + 1, device=tokens.device)
    rejected = torch.cat((~accepted, torch.ones_like(accepted[:, :1]) if accepted.shape[1] else
                          torch.ones(len(accepted), 1, dtype=torch.bool)), dim=1)  # fmt: skip
    rejected = rejected | (places >= counts[:, None])
    first = rejected.long().argmax(dim=1, keepdim=True)
    padded = torch.nn.functional.pad(tokens, (0, 1), value=0)
    at_end = (first == counts[:, None]) & (places == first)
    output = torch.where(at_end, bonus_token_ids[:, None], padded)
    return output.masked_fill(places > first, PLACEHOLDER_TOKEN_ID)


def recovered_probs(draft_token_ids, draft_probs, target_probs):
    q = draft_probs
    if q is None:
        q = torch.nn.functional.one_hot(draft_token_ids, target_probs.shape[1]).to(target_probs)
    rest = torch.maximum(target_probs - q, torch.zeros(()))
    return rest / rest.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(rest.dtype).tiny)


def rejection_greedy_sample(draft_token_ids, num_draft_tokens, target_argmax, bonus_token_ids):
    right = pad_rows(draft_token_ids.eq(target_argmax), num_draft_tokens, fill=False)
    said = pad_rows(target_argmax, num_draft_tokens, fill=PLACEHOLDER_TOKEN_ID)
    return keep_until_rejected(right, said, num_draft_tokens, bonus_token_ids)


def rejection_random_sample(
    draft_token_ids,
    num_draft_tokens,
    draft_probs,
    target_probs,
    bonus_token_ids,
    recovered_token_ids,
    uniform_probs,
):
    rows = torch.arange(len(draft_token_ids))
    p = target_probs[rows, draft_token_ids]
    q = torch.ones_like(p)
    if draft_probs is not None:
        q = draft_probs[rows, draft_token_ids]
    accepted = torch.logical_and(q != 0, p > uniform_probs * q)
    said = recovered_token_ids.where(~accepted, draft_token_ids)
    padded = [pad_rows(values, num_draft_tokens, fill=0) for values in (accepted, said)]
    return keep_until_rejected(*padded, num_draft_tokens, bonus_token_ids)
