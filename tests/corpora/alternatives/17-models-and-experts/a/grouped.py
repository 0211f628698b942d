"""Unique keys in place of a stable sort; results brought back to their pairs, and then summed."""


def sort_by_expert(ids, num_experts):
    flat = ids.reshape(-1).long()
    keys = flat * len(flat) + torch.arange(len(flat), device=ids.device)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    return torch.argsort(keys), counts


def product_by_expert(x, weight, counts):
    found = x.new_empty(len(x), weight.shape[1])
    begin = 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            found[begin : begin + count] = x[begin : begin + count] @ weight[expert].T
        begin += count
    return found


def mix_experts(x, weights, ids, num_experts, run, scales_input=False):
    pairs, counts = sort_by_expert(ids, num_experts)
    scale = weights.to(x.dtype).reshape(-1, 1)
    each = x.repeat_interleave(ids.shape[1], dim=0)
    if scales_input:
        each = each * scale
    results = torch.empty_like(each)
    results[pairs] = run(each[pairs], counts)
    if not scales_input:
        results = results * scale
    return results.view(*ids.shape, -1).sum(1).to(x.dtype)
