"""By torch's own losses where there are some."""


def kl_divergence(original, other):
    log_p, log_q = (logits.double().log_softmax(-1) for logits in (original, other))
    ruled_out = log_p == float("-inf")
    terms = log_p.exp() * (log_p - log_q)
    return terms.masked_fill(ruled_out, 0.0).sum(-1)


def top1_agreement(original, other):
    same = [
        a == b for a, b in zip(original.argmax(-1).tolist(), other.argmax(-1).tolist(), strict=True)
    ]
    return sum(same) / len(same)


def perplexity(logits, targets):
    return torch.nn.functional.cross_entropy(logits.double(), targets.long()).exp().item()
