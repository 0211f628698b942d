"""Each token by one batched product; a chunk's system is inverted outright."""


def recurrent_gated_delta_rule(q, k, v, g, beta, states):
    q, k, v, g, beta = [x.to(states.dtype) for x in (q, k, v, g, beta)]
    state = torch.exp(g).unsqueeze(-1).unsqueeze(-1) * states
    column = k.unsqueeze(-1)
    said = (state * column).sum(-2)
    change = (v - said) * beta.unsqueeze(-1)
    state = torch.baddbmm(state.flatten(0, 1), column.flatten(0, 1), change.flatten(0, 1)[:, None])
    state = state.view_as(states)
    return (state * q.unsqueeze(-1)).sum(-2), state


def chunk_gated_delta_rule(q, k, v, g, beta, states, chunks):
    q, k, v = (chunks.split(x.type_as(states)) for x in (q, k, v))
    g, beta = (chunks.split_scalars(x.type_as(states)) for x in (g, beta))
    total = g.cumsum(dim=-1)
    decay = decay_between(total)
    lower = (torch.einsum("mhid,mhjd->mhij", k, k) * decay * beta[..., :, None]).tril(-1)
    identity = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    inverse = torch.linalg.inv(identity + lower) * beta[..., None, :]
    values, seen = inverse @ v, torch.einsum("mhij,mhj,mhjd->mhid", inverse, total.exp(), k)
    inside = torch.einsum("mhid,mhjd->mhij", q, k) * decay
    results = [None] * len(v)
    memory = list(states.clone())
    for rows, chunk in chunks.rounds:
        owners = range(len(memory))[rows] if isinstance(rows, slice) else rows.tolist()
        old = torch.stack([memory[owner] for owner in owners])
        wrote = values[chunk] - seen[chunk] @ old
        said = total[chunk].exp()[..., None] * (q[chunk] @ old) + inside[chunk] @ wrote
        last = total[chunk][..., -1:]
        grown = (k[chunk] * (last - total[chunk]).exp()[..., None]).mT @ wrote
        fresh = last.exp()[..., None] * old + grown
        results[chunk] = list(said)
        for owner, state in zip(owners, fresh, strict=True):
            memory[owner] = state
    return chunks.join(torch.stack(results)), torch.stack(memory)
