"""`einsum` throughout; the triangular system is solved for values and keys side by side."""


def recurrent_gated_delta_rule(q, k, v, g, beta, states):
    dtype = states.dtype
    kept = torch.einsum("rhkv,rh->rhkv", states, g.to(dtype).exp())
    short = v.to(dtype) - torch.einsum("rhkv,rhk->rhv", kept, k.to(dtype))
    written = torch.einsum("rh,rhk,rhv->rhkv", beta.to(dtype), k.to(dtype), short)
    new = kept + written
    return torch.einsum("rhkv,rhk->rhv", new, q.to(dtype)), new


def chunk_gated_delta_rule(q, k, v, g, beta, states, chunks):
    dtype = states.dtype
    q, k, v = chunks.split(q.to(dtype)), chunks.split(k.to(dtype)), chunks.split(v.to(dtype))
    g, beta = chunks.split_scalars(g.to(dtype)), chunks.split_scalars(beta.to(dtype))
    total = torch.cumsum(g, dim=-1)
    decay = decay_between(total)
    system = torch.tril(beta[..., None] * (k @ k.mT) * decay, diagonal=-1)
    both = torch.cat((beta[..., None] * v, (beta * total.exp())[..., None] * k), dim=-1)
    eye = torch.eye(chunks.size, dtype=dtype, device=k.device)
    solved = torch.linalg.solve_triangular(system + eye, both, upper=False)
    u, w = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    scores = torch.tril((q @ k.mT) * decay)
    ends = total[..., -1:]
    out, states = torch.zeros_like(v), states.clone()
    for rows, chunk in chunks.rounds:
        state = states[rows]
        new = u[chunk] - w[chunk] @ state
        out[chunk] = total[chunk].exp()[..., None] * (q[chunk] @ state) + scores[chunk] @ new
        keys = k[chunk] * (ends[chunk] - total[chunk]).exp()[..., None]
        states[rows] = ends[chunk].exp()[..., None] * state + keys.mT @ new
    return chunks.join(out), states
