"""The quotient of denominators, by a softplus; weights of parts by a softmax."""


def add_sink(out, lse, sink):
    import torch

    left = torch.exp(-torch.nn.functional.softplus(sink.float() - lse))
    return out * left.unsqueeze(-1).to(out.dtype)


def merge_splits(partial, lse):
    shares = lse.softmax(-1).to(partial.dtype)
    return (partial * shares.unsqueeze(-1)).sum(-2), lse.logsumexp(-1)
