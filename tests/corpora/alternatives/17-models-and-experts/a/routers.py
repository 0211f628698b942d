"""Sorts in place of topk; groups by their names."""


def fused_topk(logits, topk, renormalize):
    shares = torch.softmax(logits, dim=-1, dtype=torch.float32)
    order = shares.argsort(dim=-1, descending=True)[:, :topk]
    weights = torch.gather(shares, 1, order)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, order


def topk_softmax(logits, topk):
    best = torch.topk(logits.to(torch.float32), topk, dim=-1)
    return torch.softmax(best.values, dim=-1), best.indices


def grouped_topk(
    logits,
    topk,
    renormalize,
    num_expert_group=1,
    topk_group=1,
    scoring_func="softmax",
    routed_scaling_factor=1.0,
    e_score_correction_bias=None,
):
    wide = logits.to(torch.float32)
    scores = torch.sigmoid(wide) if scoring_func == "sigmoid" else torch.softmax(wide, dim=-1)
    has_bias = e_score_correction_bias is not None
    choice = scores + e_score_correction_bias.unsqueeze(0) if has_bias else scores.clone()
    if num_expert_group > 1:
        inside = in_best_groups(choice, num_expert_group, topk_group, 1 + has_bias)
        choice[~inside] = -torch.inf
    ids = choice.sort(dim=-1, descending=True).indices[:, :topk]
    weights = torch.take_along_dim(scores, ids, dim=-1)
    total = weights.sum(dim=-1, keepdim=True) if renormalize else 1.0
    return weights / total * routed_scaling_factor, ids


def in_best_groups(scores, num_groups, best, judged_by):
    size = scores.shape[-1] // num_groups
    marks = scores.view(-1, num_groups, size).sort(dim=-1, descending=True).values
    marks = marks[:, :, :judged_by].sum(dim=-1)
    chosen = marks.argsort(dim=-1, descending=True)[:, :best]
    group_of = torch.arange(scores.shape[-1], device=scores.device) // size
    return (group_of[None, None, :] == chosen[:, :, None]).any(dim=1)
