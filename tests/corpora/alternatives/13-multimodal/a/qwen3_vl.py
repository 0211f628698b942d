"""Four nested loops; a mask over all patches."""


def patch_positions(grid_h, grid_w, merge):
    found = [
        (top + row, left + column)
        for top in range(0, grid_h, merge)
        for left in range(0, grid_w, merge)
        for row in range(merge)
        for column in range(merge)
    ]
    return torch.tensor(found, dtype=torch.int64).view(-1, 2)


def attend_within_pictures(query, key, value, lengths):
    picture = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(list(lengths)))
    same = (picture[:, None] == picture[None, :]).to(query.device)
    scores = torch.einsum("phd,qhd->hpq", query, key) / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~same, float("-inf")).softmax(dim=-1)
    return torch.einsum("hpq,qhd->phd", weights.to(value.dtype), value)
