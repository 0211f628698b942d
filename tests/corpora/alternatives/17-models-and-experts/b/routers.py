"""Exponentials written out; a group that does not count gets a mark of -inf."""


def fused_topk(logits, topk, renormalize):
    wide = logits.float()
    values, ids = wide.topk(topk, dim=-1)
    total = torch.logsumexp(values if renormalize else wide, dim=-1, keepdim=True)
    return (values - total).exp(), ids


def topk_softmax(logits, topk):
    return fused_topk(logits, topk, True)


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
    scores = {"sigmoid": torch.sigmoid, "softmax": lambda x: x.softmax(-1)}[scoring_func](
        logits.float()
    )
    judged_by, choice = 1, scores
    if e_score_correction_bias is not None:
        judged_by, choice = 2, scores + e_score_correction_bias
    if topk_group != num_expert_group:
        inside = in_best_groups(choice, num_expert_group, topk_group, judged_by)
        choice = torch.where(inside, choice, float("-inf"))
    _, ids = torch.topk(choice, k=topk, dim=-1)
    weights = scores.gather(1, ids)
    if renormalize:
        weights = torch.nn.functional.normalize(weights, p=1, dim=-1)
    return weights.mul(routed_scaling_factor), ids


def in_best_groups(scores, num_groups, best, judged_by):
    tokens = len(scores)
    groups = scores.reshape(tokens, num_groups, -1)
    marks = groups.topk(judged_by, dim=-1).values.sum(dim=-1)
    inside = torch.zeros_like(marks, dtype=torch.bool)
    inside[torch.arange(tokens)[:, None], marks.topk(best, dim=-1).indices] = True
    return inside.repeat_interleave(groups.shape[-1], dim=-1)
