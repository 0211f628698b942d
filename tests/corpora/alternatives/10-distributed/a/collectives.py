"""Two rounds, each with its own loop, over a list of chunks."""


def ring_all_reduce(x, group):
    p, me = group.world_size, group.rank_in_group
    if p == 1:
        return x.clone()
    right, left = (me + 1) % p, (me + p - 1) % p
    numbers = x.reshape(-1)
    each = (numbers.numel() + p - 1) // p
    padding = numbers.new_zeros(p * each - numbers.numel())
    chunks = [chunk.clone() for chunk in torch.cat([numbers, padding]).split(each)] if each else []
    chunks = chunks or [numbers.new_zeros(0) for _ in range(p)]

    def swap(leaving):
        coming = torch.empty_like(leaving)
        waiting = [group.irecv(coming, left), group.isend(leaving, right)]
        for one in waiting:
            one.wait()
        return coming

    mine = me
    for _ in range(p - 1):
        coming = swap(chunks[mine])
        mine = (mine - 1) % p
        chunks[mine] = chunks[mine] + coming
    for _ in range(p - 1):
        coming = swap(chunks[mine])
        mine = (mine - 1) % p
        chunks[mine] = coming
    return torch.cat(chunks)[: x.numel()].reshape(x.shape)


def ring_time(num_bytes, p, alpha, beta):
    messages = 2 * p - 2
    return messages * alpha + messages * num_bytes * beta / p


def one_shot_time(num_bytes, p, alpha, beta):
    if p == 1:
        return 0.0
    others = p - 1
    return alpha + beta * num_bytes * others
