"""Cross entropy less entropy."""


def kl_divergence(original, other):
    shifted_p = original.double() - original.double().logsumexp(-1, keepdim=True)
    shifted_q = other.double() - other.double().logsumexp(-1, keepdim=True)
    p = torch.exp(shifted_p)
    entropy = torch.special.entr(p).sum(-1)
    return -(p * shifted_q.masked_fill(p == 0, 0.0)).sum(-1) - entropy


def top1_agreement(original, other):
    pairs = zip(original.argmax(-1).tolist(), other.argmax(-1).tolist(), strict=True)
    hits = [a == b for a, b in pairs]
    return sum(hits) / len(hits)


def perplexity(logits, targets):
    chosen = logits.double().softmax(-1)[torch.arange(len(targets)), targets]
    return float(torch.prod(chosen ** (-1 / len(targets))))
