"""The sink as one more part of the context, whose values are zeros."""


def add_sink(out, lse, sink):
    import torch

    parts = torch.stack([lse, sink.to(lse.dtype)[None].expand(lse.shape)], dim=-1)
    share = torch.softmax(parts, dim=-1)[..., 0]
    return (out.to(share.dtype) * share[..., None]).to(out.dtype)


def merge_splits(partial, lse):
    import torch

    out, whole = partial[..., 0, :], lse[..., 0]
    out = torch.where(torch.isneginf(whole)[..., None], torch.zeros_like(out), out)
    for part in range(1, lse.shape[-1]):
        both = torch.logaddexp(whole, lse[..., part])
        is_empty = torch.isneginf(both)
        safe = both.masked_fill(is_empty, 0.0)
        old, new = (whole - safe).exp(), (lse[..., part] - safe).exp()
        values = torch.where((new > 0)[..., None], partial[..., part, :], torch.zeros_like(out))
        out = old[..., None].to(out.dtype) * out + new[..., None].to(out.dtype) * values
        whole = both
    return out.to(partial.dtype), whole
