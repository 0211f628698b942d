"""A loop over requests; a chunk's system is solved row by row."""


def recurrent_gated_delta_rule(q, k, v, g, beta, states):
    outputs, memories = [], []
    for request in range(len(states)):
        own = [x[request].to(states.dtype) for x in (q, k, v, g, beta)]
        query, key, value, kept, strength = own
        memory = states[request] * kept.exp()[:, None, None]
        short = strength[:, None] * (value - torch.matmul(memory.mT, key[..., None])[..., 0])
        memory = memory + torch.einsum("hk,hv->hkv", key, short)
        outputs.append(torch.matmul(memory.mT, query[..., None])[..., 0])
        memories.append(memory)
    return torch.stack(outputs), torch.stack(memories)


def chunk_gated_delta_rule(q, k, v, g, beta, states, chunks):
    kind = states.dtype
    q, k, v = (chunks.split(x.to(kind)) for x in (q, k, v))
    g, beta = (chunks.split_scalars(x.to(kind)) for x in (g, beta))
    total = g.cumsum(-1)
    decay = decay_between(total)
    system = (beta[..., None] * (k @ k.mT) * decay).tril(-1)
    u, w = beta[..., None] * v, beta[..., None] * total.exp()[..., None] * k
    solved_u, solved_w = torch.zeros_like(u), torch.zeros_like(w)
    for row in range(chunks.size):
        before = system[..., row : row + 1, :row]
        solved_u[..., row, :] = u[..., row, :] - (before @ solved_u[..., :row, :])[..., 0, :]
        solved_w[..., row, :] = w[..., row, :] - (before @ solved_w[..., :row, :])[..., 0, :]
    inside = (q @ k.mT * decay).tril()
    out, new = torch.empty_like(v), states.clone()
    for rows, chunk in chunks.rounds:
        old = new[rows]
        wrote = solved_u[chunk] - solved_w[chunk] @ old
        out[chunk] = (total[chunk].exp()[..., None] * q[chunk]) @ old + inside[chunk] @ wrote
        last = total[chunk][..., -1]
        keys = k[chunk] * (last[..., None] - total[chunk]).exp()[..., None]
        new[rows] = old * last.exp()[..., None, None] + keys.mT @ wrote
    return chunks.join(out), new
