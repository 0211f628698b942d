"""Two products with the latents, one for each part of a key; a softmax by hand."""


def attend_latent(query, latents, lens, weight, scale):
    size = weight.shape[2]
    rotated = latents.shape[2] - size
    plain = query.shape[2] - rotated
    counts = torch.arange(latents.shape[1], device=latents.device)[None] < lens[:, None]
    clean = torch.where(counts[..., None], latents, torch.zeros_like(latents))
    c, k_r = clean[..., :size], clean[..., size:]
    moved = torch.matmul(query[..., :plain].transpose(0, 1), weight[:, :plain]).transpose(0, 1)
    scores = torch.matmul(moved, c.mT) + torch.matmul(query[..., plain:], k_r.mT)
    scores = (scores * scale).masked_fill(~counts[:, None], float("-inf"))
    scores = (scores - scores.amax(-1, keepdim=True)).exp()
    mixed = torch.matmul(scores / scores.sum(-1, keepdim=True), c)
    return torch.matmul(mixed.transpose(0, 1), weight[:, plain:].mT).transpose(0, 1)
