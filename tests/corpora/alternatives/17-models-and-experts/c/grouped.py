"""Lists of pairs by expert; results go back to the pairs' places and are added there."""


def sort_by_expert(ids, num_experts):
    of = [[] for _ in range(num_experts)]
    for pair, expert in enumerate(ids.reshape(-1).tolist()):
        of[expert].append(pair)
    pairs = torch.tensor([pair for own in of for pair in own], dtype=torch.long, device=ids.device)
    return pairs, torch.tensor([len(own) for own in of], dtype=torch.int32, device=ids.device)


def product_by_expert(x, weight, counts):
    result = torch.empty(len(x), weight.shape[1], dtype=x.dtype, device=x.device)
    last = 0
    for expert, rows in enumerate(int(count) for count in counts):
        if rows:
            own = slice(last, last + rows)
            result[own] = torch.einsum("pi,oi->po", x[own], weight[expert])
            last += rows
    return result


def mix_experts(x, weights, ids, num_experts, run, scales_input=False):
    num_tokens, k = ids.shape
    pairs, counts = sort_by_expert(ids, num_experts)
    factors = weights.to(x.dtype).flatten().unsqueeze(1)
    rows = x.repeat_interleave(k, dim=0)
    if scales_input:
        rows = rows * factors
    results = run(rows[pairs], counts)
    placed = torch.empty_like(results)
    placed[pairs] = results
    if not scales_input:
        placed = placed * factors
    return placed.view(num_tokens, k, x.shape[1]).sum(dim=1)
