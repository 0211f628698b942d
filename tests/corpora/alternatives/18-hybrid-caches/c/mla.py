"""Request after request, on its own latents alone."""


def attend_latent(query, latents, lens, weight, scale):
    width = weight.shape[2]
    plain = query.shape[2] - (latents.shape[2] - width)
    up, value = weight[:, :plain], weight[:, plain:]
    results = []
    for one, own, length in zip(query, latents, lens.tolist(), strict=True):
        own = own[:length]
        moved = torch.cat([torch.einsum("np,npc->nc", one[:, :plain], up), one[:, plain:]], -1)
        shares = (moved @ own.T * scale).softmax(-1)
        results.append(((shares @ own[:, :width])[:, None] @ value.mT)[:, 0])
    return torch.stack(results)
