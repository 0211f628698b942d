"""A token's experts in ascending order of their numbers; a group counts if few are better."""


def by_number(scores, topk):
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen.scatter_(-1, scores.topk(topk, dim=-1, sorted=False).indices, True)
    return chosen.nonzero()[:, 1].view(len(scores), topk)


def fused_topk(logits, topk, renormalize):
    probabilities = torch.nn.functional.softmax(logits, dim=-1, dtype=torch.float32)
    ids = by_number(probabilities, topk)
    weights = probabilities.take_along_dim(ids, dim=-1)
    return (weights / weights.sum(dim=-1, keepdim=True) if renormalize else weights), ids


def topk_softmax(logits, topk):
    ids = by_number(logits, topk)
    return logits.take_along_dim(ids, dim=-1).double().softmax(-1).float(), ids


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
    scores = wide.sigmoid() if scoring_func == "sigmoid" else torch.softmax(wide, dim=1)
    if e_score_correction_bias is None:
        choice = scores
        inside = in_best_groups(choice, num_expert_group, topk_group, 1)
    else:
        choice = scores + e_score_correction_bias[None].float()
        inside = in_best_groups(choice, num_expert_group, topk_group, 2)
    ids = by_number(choice.masked_fill(~inside, -torch.inf), topk)
    weights = torch.take_along_dim(scores, ids, 1)
    if renormalize:
        weights = weights * (routed_scaling_factor / weights.sum(dim=1, keepdim=True))
        return weights, ids
    return weights * routed_scaling_factor, ids


def in_best_groups(scores, num_groups, best, judged_by):
    groups = scores.unflatten(1, (num_groups, -1))
    worth = groups.sort(dim=-1, descending=True).values[..., :judged_by].sum(dim=-1)
    better = (worth[:, None, :] > worth[:, :, None]).sum(dim=-1)
    return (better < best)[..., None].expand(groups.shape).flatten(1)
