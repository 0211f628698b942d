"""A loop over requests, as upstream's kernels have it."""


def keep_until_rejected(accepted, tokens, num_draft_tokens, bonus_token_ids):
    size, width = tokens.shape
    output = torch.full((size, width + 1), PLACEHOLDER_TOKEN_ID, dtype=torch.int64)
    for request, count in enumerate(num_draft_tokens):
        rejected = False
        for place in range(count):
            output[request, place] = tokens[request, place]
            if not accepted[request, place]:
                rejected = True
                break
        if not rejected:
            output[request, count] = bonus_token_ids[request]
    return output


def rejection_greedy_sample(draft_token_ids, num_draft_tokens, target_argmax, bonus_token_ids):
    same = pad_rows(draft_token_ids == target_argmax, num_draft_tokens, fill=False)
    says = pad_rows(target_argmax, num_draft_tokens, fill=0)
    return keep_until_rejected(same, says, num_draft_tokens, bonus_token_ids)


def recovered_probs(draft_token_ids, draft_probs, target_probs):
    if draft_probs is None:
        draft_probs = torch.zeros_like(target_probs)
        draft_probs[torch.arange(len(draft_token_ids)), draft_token_ids] = 1.0
    missing = torch.relu(target_probs - draft_probs)
    return torch.nan_to_num(missing / missing.sum(dim=1, keepdim=True), nan=0.0)


def rejection_random_sample(
    draft_token_ids,
    num_draft_tokens,
    draft_probs,
    target_probs,
    bonus_token_ids,
    recovered_token_ids,
    uniform_probs,
):
    accepted = torch.zeros(len(draft_token_ids), dtype=torch.bool)
    for row, token in enumerate(draft_token_ids.tolist()):
        p = float(target_probs[row, token])
        q = 1.0 if draft_probs is None else float(draft_probs[row, token])
        accepted[row] = q > 0 and p > float(uniform_probs[row]) * q
    tokens = torch.where(accepted, draft_token_ids, recovered_token_ids)
    return keep_until_rejected(
        pad_rows(accepted, num_draft_tokens, fill=False),
        pad_rows(tokens, num_draft_tokens, fill=0),
        num_draft_tokens,
        bonus_token_ids,
    )
