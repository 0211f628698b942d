"""One loop for both rounds, over a list of chunks."""


def ring_all_reduce(x, group):
    p, rank = group.world_size, group.rank_in_group
    flat = x.reshape(-1)
    chunk_size = (flat.numel() + p - 1) // p
    padded = flat.new_zeros(p * chunk_size)
    padded[: flat.numel()] = flat
    chunks = list(padded.reshape(p, chunk_size).unbind(0))
    after, before = (rank + 1) % p, (rank - 1) % p
    for step in range(2 * p - 2):
        outgoing = chunks[(rank - step) % p]
        incoming = torch.empty_like(outgoing)
        sending = group.isend(outgoing, after)
        receiving = group.irecv(incoming, before)
        sending.wait()
        receiving.wait()
        target = (rank - step - 1) % p
        chunks[target] = chunks[target] + incoming if step < p - 1 else incoming
    return torch.cat(chunks)[: flat.numel()].reshape(x.shape)


def ring_time(num_bytes, p, alpha, beta):
    messages = 2 * (p - 1)
    return messages * (alpha + beta * (num_bytes / p))


def one_shot_time(num_bytes, p, alpha, beta):
    if p == 1:
        return 0.0
    return alpha + beta * num_bytes * (p - 1)
