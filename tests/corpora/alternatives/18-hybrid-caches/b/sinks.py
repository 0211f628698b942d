"""By the largest of all logarithms, so that no exponential is above 1."""


def add_sink(out, lse, sink):
    import torch

    largest = torch.maximum(lse, sink.to(lse.dtype).expand_as(lse))
    keys, nothing = (lse - largest).exp(), (sink.to(lse.dtype) - largest).exp()
    return out * (keys / (keys + nothing))[..., None].to(out.dtype)


def merge_splits(partial, lse):
    largest = lse.amax(-1, keepdim=True)
    weights = (lse - largest).exp()
    whole = weights.sum(-1, keepdim=True)
    out = ((weights / whole)[..., None].to(partial.dtype) * partial).sum(-2)
    return out, (largest + whole.log())[..., 0]
