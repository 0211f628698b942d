"""A permuted table of patch numbers; one product after another."""


def patch_positions(grid_h, grid_w, merge):
    numbers = torch.arange(grid_h * grid_w).view(grid_h // merge, merge, grid_w // merge, merge)
    order = numbers.permute(0, 2, 1, 3).reshape(-1)
    return torch.stack((order // grid_w, order % grid_w), dim=1)


def attend_within_pictures(query, key, value, lengths):
    out, start = torch.empty_like(query), 0
    for length in lengths:
        part = slice(start, start + length)
        q, k, v = (x[part].transpose(0, 1).float() for x in (query, key, value))
        weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
        out[part] = (weights @ v).transpose(0, 1).to(out.dtype)
        start += length
    return out
