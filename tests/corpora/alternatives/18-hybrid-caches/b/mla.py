"""PyTorch's fused attention: latents are the one key and value that all heads share."""


def attend_latent(query, latents, lens, weight, scale):
    size, width = weight.shape[2], latents.shape[2]
    plain = query.shape[2] - width + size
    is_there = torch.arange(latents.shape[1], device=lens.device) < lens[:, None]
    latents = latents.where(is_there[..., None], 0)
    moved = torch.einsum("bnp,npc->bnc", query[..., :plain], weight[:, :plain])
    moved = torch.cat((moved, query[..., plain:]), dim=-1)
    scores = torch.einsum("bnw,blw->bnl", moved, latents) * scale
    scores = scores + torch.zeros_like(scores).masked_fill(~is_there[:, None], -torch.inf)
    shares = torch.softmax(scores, -1)
    mixed = torch.einsum("bnl,blc->bnc", shares, latents[..., :size])
    return torch.einsum("bnc,nvc->bnv", mixed, weight[:, plain:])
