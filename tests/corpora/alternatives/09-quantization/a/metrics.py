"""Probabilities first, logarithms of quotients then."""


def kl_divergence(original, other):
    p = original.double().softmax(-1)
    log_q = torch.log_softmax(other.double(), -1)
    each = torch.nn.functional.kl_div(log_q, p, reduction="none")
    return each.masked_fill(p == 0, 0.0).sum(dim=-1)


def top1_agreement(original, other):
    same = torch.eq(original.max(dim=-1).indices, other.max(dim=-1).indices)
    return float(same.sum()) / same.numel()


def perplexity(logits, targets):
    return float(torch.exp(torch.nn.functional.cross_entropy(logits.double(), targets)))
