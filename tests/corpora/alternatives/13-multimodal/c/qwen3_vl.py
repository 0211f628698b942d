"""Four loops, and the softmax written out."""


def patch_positions(grid_h, grid_w, merge):
    return torch.tensor(
        [
            (top + row, left + column)
            for top in range(0, grid_h, merge)
            for left in range(0, grid_w, merge)
            for row in range(merge)
            for column in range(merge)
        ]
    )


def attend_within_pictures(query, key, value, lengths):
    out = torch.empty_like(query)
    start = 0
    for length in lengths:
        mine = slice(start, start + length)
        start += length
        scores = torch.einsum("qhd,khd->hqk", query[mine].float(), key[mine].float())
        weights = torch.softmax(scores / query.shape[-1] ** 0.5, dim=-1)
        out[mine] = torch.einsum("hqk,khd->qhd", weights, value[mine].float()).to(out.dtype)
    return out
